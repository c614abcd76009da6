"""The law of rows as a tool for anybody's kernel."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Difference", "check_rows"]

COUNTS = (2, 3, 4, 7, 8, 9, 16, 17, 33)
POISONS = (float("nan"), float("inf"), 3e38)


@dataclass(frozen=True)
class Difference:
    """The first value of a row that is not what the row gets alone."""

    row: int
    """Which of the rows that were handed in."""
    position: tuple[Any, ...]
    """Where in the row's result."""
    solo: Any
    """The value alone."""
    joint: Any
    """The value in the joint call."""
    solo_bits: str
    joint_bits: str
    call: str
    """What the joint call was."""
    rows: tuple[int, ...]
    """The rows of the joint call, in its order."""
    entry: int
    """Which of them this is."""

    def __str__(self) -> str:
        at = "".join(f"[{p!r}]" for p in self.position)
        return (
            f"row {self.row}{at}: alone {self.solo} ({self.solo_bits}), in a joint call {self.joint} ({self.joint_bits}); "
            f"the call: {self.call}, rows {list(self.rows)}, this one as entry {self.entry}"
        )


def check_rows(
    fn: Callable[[list[Any]], Sequence[Any]],
    rows: Sequence[Any],
    *,
    counts: Sequence[int] = COUNTS,
    poisons: Sequence[float] = POISONS,
    seed: int = 0,
) -> Difference | None:
    """Whether `fn` gives a row the same bits whatever other rows are in the call; needs NumPy.

    Args:
        fn: takes a list of rows, and returns their results, one each, in the same order: a list, or an array with one entry a row.
        rows: two or more inputs of `fn`. A row, like a result, is an array (NumPy, PyTorch, JAX, CuPy), or a tuple, list or dict of
            such; anything else in it is handed on as it is. `fn` gets copies, so it may write them.
        counts: numbers of rows of the joint calls; rows are repeated where there are not as many.
        poisons: what the floats of all other rows are filled with, one after another, while one row is looked at. Empty: none.
        seed: of the choice of rows.

    Returns:
        None, or the first difference: compared are the calls of every row alone (again), all rows in order, reversed and shuffled, then
        `counts`, then poisoned neighbours.
    """
    import numpy  # noqa: F401  (a clear error where it is missing)

    if len(rows) < 2:
        raise ValueError(f"check_rows: rows must be two or more, got {len(rows)}")
    solo = [_leaves(_results(fn, [row])[0]) for row in rows]
    if not all(solo):
        raise ValueError("check_rows: fn must return something for every row, got None, where nothing can be compared")
    for call, picked, poison, judged in _calls(len(rows), (counts, poisons), random.Random(seed)):
        inputs = [rows[r] if e in judged else _filled(rows[r], poison) for e, r in enumerate(picked)]
        results = _results(fn, inputs)
        for e in judged:
            found = _first_difference(solo[picked[e]], _leaves(results[e]))
            if found is not None:
                return Difference(picked[e], *found, call, tuple(picked), e)
    return None


def _calls(n: int, how: tuple[Sequence[int], Sequence[float]], rng: random.Random) -> Iterator[tuple[str, list[int], float, Sequence[int]]]:
    """The joint calls: what it is, its rows, what those are filled with that are not judged, and which are."""
    counts, poisons = how
    for r in range(n):
        yield "alone again", [r], 0.0, [0]
    shuffled = rng.sample(range(n), n)
    for name, order in [("all", list(range(n))), ("reversed", list(range(n))[::-1]), ("shuffled", shuffled)]:
        yield name, order, 0.0, range(n)
    for count in counts:
        picked = [rng.randrange(n) for _ in range(count)]
        yield f"{count} rows", picked, 0.0, range(count)
    for poison in poisons:
        for r in range(n):
            others = [rng.randrange(n) for _ in range(rng.choice([1, 3, 7]))]
            entry = rng.randrange(len(others) + 1)
            picked = others[:entry] + [r] + others[entry:]
            yield f"neighbours full of {poison}", picked, poison, [entry]


def _results(fn: Callable[[list[Any]], Sequence[Any]], inputs: list[Any]) -> Sequence[Any]:
    results = fn([_mapped(row, _copy) for row in inputs])
    if not hasattr(results, "__len__") or isinstance(results, (dict, str)):
        raise ValueError(f"check_rows: fn must return a list, or an array with one entry a row, got {type(results).__name__}")
    if len(results) != len(inputs):
        raise ValueError(f"check_rows: fn must return one result a row: {len(inputs)}, got {len(results)}")
    return results


def _mapped(row: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(row, dict):
        return {key: _mapped(value, change) for key, value in row.items()}
    if isinstance(row, (list, tuple)):
        values = [_mapped(value, change) for value in row]
        # A tuple with names takes its values one by one.
        return type(row)(*values) if hasattr(row, "_fields") else type(row)(values)
    return change(row)


def _library(x: Any) -> Any:
    """The module that makes arrays like this; None for what is no array."""
    name = type(x).__module__.split(".")[0]
    if "torch" in sys.modules and isinstance(x, sys.modules["torch"].Tensor):
        return sys.modules["torch"]
    if name in ("jax", "jaxlib"):
        return sys.modules["jax"].numpy
    return sys.modules[name] if name in ("numpy", "cupy") and hasattr(x, "shape") else None


def _copy(x: Any) -> Any:
    library = _library(x)
    if library is None:
        return x
    return x.clone() if library.__name__ == "torch" else x.copy()


def _filled(row: Any, value: float) -> Any:
    import numpy

    def fill(x: Any) -> Any:
        library = _library(x)
        if library is None or not _is_float(x):
            return x
        # 3e38 is infinity to a half, which is as good a poison.
        with numpy.errstate(over="ignore"):
            return library.full_like(x, value)

    return _mapped(row, fill)


def _is_float(x: Any) -> bool:
    if hasattr(x.dtype, "is_floating_point"):
        return x.dtype.is_floating_point
    # ml_dtypes.bfloat16 is of no kind that NumPy knows.
    return x.dtype.kind == "f" or "float" in x.dtype.name


def _leaves(result: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """Every array of a row's result on the host, with the way to it."""
    import numpy

    if result is None:
        return []
    if isinstance(result, dict):
        parts = list(result.items())
    elif isinstance(result, (list, tuple)):
        parts = list(enumerate(result))
    else:
        library = _library(result)
        name = library.__name__ if library is not None else ""
        if name == "torch":
            return [((), result.detach().cpu().contiguous().clone())]
        leaf = result.get() if name == "cupy" else numpy.array(result)
        if leaf.dtype.hasobject:
            raise ValueError(f"check_rows: fn must return arrays or numbers, got {type(result).__name__}")
        return [((), leaf)]
    return [((key, *way), leaf) for key, part in parts for way, leaf in _leaves(part)]


def _bytes(leaf: Any) -> Any:
    import numpy

    if hasattr(leaf, "numpy"):
        leaf = leaf.reshape(-1).view(sys.modules["torch"].uint8).numpy()
    return numpy.ascontiguousarray(leaf).reshape(-1).view(numpy.uint8)


def _first_difference(solo: list[Any], joint: list[Any]) -> tuple[Any, ...] | None:
    import numpy

    if [way for way, _ in solo] != [way for way, _ in joint]:
        raise ValueError("check_rows: fn must return results of one structure for a row, alone and in company")
    for (way, a), (_, b) in zip(solo, joint):
        if tuple(a.shape) != tuple(b.shape) or a.dtype != b.dtype:
            got = f"{tuple(a.shape)} {a.dtype} alone, {tuple(b.shape)} {b.dtype} in company"
            raise ValueError(f"check_rows: fn must return one shape and type for a row, got {got}")
        bytes_a, bytes_b = _bytes(a), _bytes(b)
        differs = numpy.flatnonzero(bytes_a != bytes_b)
        if len(differs):
            size = a.dtype.itemsize
            flat = int(differs[0]) // size
            bits = [f"0x{bytes(x[flat * size :][:size][::-1]).hex()}" for x in (bytes_a, bytes_b)]
            index = numpy.unravel_index(flat, tuple(a.shape))
            values = [x.reshape(-1)[flat].item() for x in (a, b)]
            return (*way, *(int(i) for i in index)), values[0], values[1], bits[0], bits[1]
    return None
