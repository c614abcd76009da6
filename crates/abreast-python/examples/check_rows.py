"""Does a row's result depend on what it is batched with? For plain attention over a padded batch, and for ours.

Runs on PyTorch, else on NumPy: `pip install ./crates/abreast-python numpy ml_dtypes`.
"""

import numpy as np

import abreast

try:
    import torch
except ImportError:
    torch = None
    import ml_dtypes


def plain_torch(rows):
    """What one writes first: caches padded to the longest, and PyTorch's own attention over the batch."""
    longest = max(kv.shape[0] for _, kv, _ in rows)
    q = torch.stack([q for q, _, _ in rows])[:, :, None]
    kv = torch.stack([torch.nn.functional.pad(kv, (0, 0, 0, longest - kv.shape[0])) for _, kv, _ in rows])
    kv = kv[:, None].expand(-1, q.shape[1], -1, -1)
    lengths = torch.tensor([kv.shape[0] for _, kv, _ in rows])
    mask = (torch.arange(longest) < lengths[:, None])[:, None, None]
    return torch.nn.functional.scaled_dot_product_attention(q, kv, kv, attn_mask=mask)[:, :, 0]


def plain_numpy(rows):
    """The same in matrix products."""
    longest = max(kv.shape[0] for _, kv, _ in rows)
    padded = [np.pad(kv.astype(np.float32), ((0, longest - kv.shape[0]), (0, 0))) for _, kv, _ in rows]
    q, kv = np.stack([q for q, _, _ in rows]).astype(np.float32), np.stack(padded)
    lengths = np.array([kv.shape[0] for _, kv, _ in rows])
    logits = (q @ kv.transpose(0, 2, 1)) * q.shape[-1] ** -0.5
    logits[np.broadcast_to(np.arange(longest) >= lengths[:, None, None], logits.shape)] = -np.inf
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return ((weights / weights.sum(-1, keepdims=True)) @ kv).astype(ml_dtypes.bfloat16)


def ours(rows):
    stack = torch.stack if torch else np.stack
    return abreast.sparse_attention(stack([q for q, _, _ in rows]), [kv for _, kv, _ in rows], [i for _, _, i in rows])


def main():
    rng = np.random.default_rng(0)
    bf16 = (lambda x: torch.from_numpy(x).bfloat16()) if torch else (lambda x: x.astype(ml_dtypes.bfloat16))
    normal = lambda *shape: bf16(rng.standard_normal(shape).astype(np.float32))  # noqa: E731
    # A query, its cache, and the list of all its slots.
    index = torch.from_numpy if torch else np.asarray
    rows = [(normal(64, 512), normal(n, 512), index(np.arange(n, dtype=np.int32))) for n in (37, 640, 129, 1000)]
    found = abreast.check_rows(plain_torch if torch else plain_numpy, rows)
    print(f"plain {'PyTorch' if torch else 'NumPy'} attention: {found}")
    assert found is not None
    found = abreast.check_rows(ours, rows)
    print(f"abreast: {'the law holds' if found is None else found}")
    assert found is None


if __name__ == "__main__":
    main()
