"""Four requests of different lengths in one decode step, and each of them alone: the same bits.

One layer's worth of DeepSeek-V4's sparse attention: the compressor adds to each request's cache, the indexer selects keys,
attention reads the window and the selection. Runs on PyTorch (on a GPU where there is one), else on NumPy:
`pip install ./crates/abreast-python numpy ml_dtypes`.
"""

import numpy as np

import abreast

HEADS, DIM, INDEX_HEADS, INDEX_DIM = 64, 512, 64, 128
RATIO, WINDOW, K = 4, 128, 512


def library():
    """How arrays are made and looked at."""
    try:
        import torch
    except ImportError:
        import ml_dtypes

        print("NumPy")
        return lambda x, bf16=False: x.astype(ml_dtypes.bfloat16) if bf16 else x, lambda x: x
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"PyTorch on {device}")

    def of(x, bf16=False):
        tensor = torch.from_numpy(x).to(device)
        return tensor.bfloat16() if bf16 else tensor

    return of, lambda tensor: tensor.float().cpu().numpy() if tensor.is_floating_point() else tensor.cpu().numpy()


def request(of, position, seed):
    """A request that has come to `position`: its caches, its compressor's state, and the inputs of this step."""
    rng = np.random.default_rng(seed)
    normal = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    blocks = (position + 1) // RATIO
    # Window slots first, then compressed entries; the newest entry is this step's, where it completes a block.
    return dict(
        position=position,
        blocks=blocks,
        kv=of(normal(WINDOW + blocks, DIM), bf16=True),
        keys=of(normal(blocks, INDEX_DIM), bf16=True),
        state=(of(normal(2 * RATIO, 2 * DIM)), of(normal(2 * RATIO, 2 * DIM))),
        token=(of(normal(1, 2 * DIM)), of(normal(1, 2 * DIM))),
        q=of(normal(HEADS, DIM), bf16=True),
        index_q=of(normal(INDEX_HEADS, INDEX_DIM), bf16=True),
        index_weights=of(normal(INDEX_HEADS)),
    )


def step(of, shared, requests):
    """One step of any number of requests, as an engine would make it."""
    gather = lambda name: abreast.gather_rows([r[name].reshape(-1) for r in requests])  # noqa: E731
    rows, positions = len(requests), [r["position"] for r in requests]
    entries = abreast.compress(
        [r["token"][0] for r in requests],
        [r["token"][1] for r in requests],
        [r["state"][0] for r in requests],
        [r["state"][1] for r in requests],
        shared["ape"],
        shared["norm"],
        positions,
        ratio=RATIO,
    )
    for r, entry in zip(requests, entries):
        if (r["position"] + 1) % RATIO == 0:
            r["kv"][WINDOW + r["blocks"] - 1] = entry
    # One index list a request: the window's slots, and behind them, in place, what the indexer selects.
    indices = of(np.full((rows, WINDOW + K), -1, np.int32))
    indices[:, :WINDOW] = of(np.arange(WINDOW, dtype=np.int32))
    abreast.select_keys(
        gather("index_q").reshape(rows, INDEX_HEADS, INDEX_DIM),
        gather("index_weights").reshape(rows, INDEX_HEADS),
        [r["keys"] for r in requests],
        positions,
        ratio=RATIO,
        k=K,
        offset=WINDOW,
        out=indices,
        out_offsets=[r * (WINDOW + K) + WINDOW for r in range(rows)],
    )
    q = gather("q").reshape(rows, HEADS, DIM)
    return abreast.sparse_attention(q, [r["kv"] for r in requests], indices, sinks=shared["sinks"])


def main():
    of, host = library()
    rng = np.random.default_rng(9)
    shared = dict(
        ape=of(rng.standard_normal((RATIO, 2 * DIM)).astype(np.float32)),
        norm=of(np.ones(DIM, np.float32)),
        sinks=of(np.zeros(HEADS, np.float32)),
    )
    at = [7, 130, 1023, 5002]
    joint = host(step(of, shared, [request(of, p, seed) for seed, p in enumerate(at)]))
    for seed, position in enumerate(at):
        alone = host(step(of, shared, [request(of, position, seed)]))
        same = (joint[seed] == alone[0]).all()
        print(f"request at position {position:4}: first values {joint[seed, 0, :3]}, alone the same: {same}")
        assert same


if __name__ == "__main__":
    main()
