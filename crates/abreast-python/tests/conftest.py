"""What the tests share: libraries of arrays, and the recorded traces."""

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

BF16 = ml_dtypes.bfloat16
TRACES = Path(os.environ.get("ABREAST_TRACES", Path(__file__).parents[3] / "data" / "traces"))


class Library:
    """A library of arrays: in with `of`, out with `host`."""

    immutable = False

    def of(self, array):
        raise NotImplementedError

    def host(self, array):
        raise NotImplementedError

    def writable(self, array):
        return self.of(array)

    def all(self, arrays):
        return [self.of(array) for array in arrays]


class Numpy(Library):
    name = "numpy"
    type = np.ndarray

    def of(self, array):
        return np.ascontiguousarray(array).copy()

    def host(self, array):
        return array


class Jax(Library):
    name = "jax"
    immutable = True

    def __init__(self):
        self.jax = pytest.importorskip("jax", reason="JAX is not installed")
        # On the CPU: a GPU has tests of its own.
        self.jax.config.update("jax_default_device", self.jax.devices("cpu")[0])
        self.type = self.jax.Array

    def of(self, array):
        return self.jax.numpy.asarray(array)

    def host(self, array):
        return np.asarray(array)

    def writable(self, array):
        # Arrays of JAX never change: what is written is another library's.
        return np.ascontiguousarray(array).copy()


class Torch(Library):
    def __init__(self, name, device):
        self.name, self.device = name, device
        self.torch = pytest.importorskip("torch", reason="PyTorch is not installed")
        if device == "cuda" and not self.torch.cuda.is_available():
            pytest.skip("PyTorch sees no GPU")
        self.type = self.torch.Tensor

    def of(self, array):
        array = np.ascontiguousarray(array)
        if array.dtype == BF16:
            tensor = self.torch.from_numpy(array.view(np.int16).copy()).view(self.torch.bfloat16)
        else:
            tensor = self.torch.from_numpy(array.copy())
        return tensor.to(self.device)

    def host(self, tensor):
        if tensor.dtype == self.torch.bfloat16:
            return tensor.cpu().view(self.torch.int16).numpy().view(BF16)
        return tensor.cpu().numpy()


MAKE = {
    "numpy": Numpy,
    "jax": Jax,
    "torch": lambda: Torch("torch", "cpu"),
    "torch-cuda": lambda: Torch("torch-cuda", "cuda"),
}


@pytest.fixture(params=MAKE)
def lib(request):
    return MAKE[request.param]()


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture
def cuda(torch):
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    return torch


def bits(array):
    """An array's bits, to be compared."""
    array = np.asarray(array)
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def same(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and bool((bits(a) == bits(b)).all())


def attention(rows=4, heads=64, dim=512, seed=0, widths=None):
    """Queries, caches of several lengths, index lists of several widths (with some -1)."""
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((rows, heads, dim)).astype(BF16)
    kv = [rng.standard_normal((40 + 30 * r, dim)).astype(BF16) for r in range(rows)]
    widths = widths or [17 + 11 * r for r in range(rows)]
    indices = [rng.integers(-1, len(k), w).astype(np.int32) for k, w in zip(kv, widths)]
    return q, kv, indices


def indexer(rows=4, heads=64, dim=128, seed=0):
    """Queries, weights, keys and positions at ratio 4."""
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((rows, heads, dim)).astype(BF16)
    weights = rng.standard_normal((rows, heads)).astype(np.float32)
    start_pos = [3 + 61 * r for r in range(rows)]
    keys = [rng.standard_normal(((p + 1) // 4 + r, dim)).astype(BF16) for r, p in enumerate(start_pos)]
    return q, weights, keys, start_pos


def compressor(rows=3, ratio=4, d=128, seed=0, tokens=None):
    """Inputs and fresh states of a compressor, and positions."""
    rng = np.random.default_rng(seed)
    coff = 2 if ratio == 4 else 1
    tokens = tokens or [5 + r for r in range(rows)]
    normal = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    kv, score = ([normal(n, coff * d) for n in tokens] for _ in range(2))
    kv_state = [np.zeros((coff * ratio, coff * d), np.float32) for _ in range(rows)]
    score_state = [np.full((coff * ratio, coff * d), -np.inf, np.float32) for _ in range(rows)]
    ape, norm = normal(ratio, coff * d), normal(d)
    return dict(kv=kv, score=score, kv_state=kv_state, score_state=score_state, ape=ape, norm=norm, start_pos=[0] * rows)
