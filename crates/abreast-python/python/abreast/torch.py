"""The operations as custom operators of PyTorch, `torch.ops.abreast.*`: `torch.compile` traces through the functions of this module.

They take what the functions of `abreast` of the same names take, except `stream`: work goes to PyTorch's current one. The operators
return nothing and write `out` (and states, and status), which their schemas declare; the functions make `out` where it is not given.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from . import ops as _ops

_library = torch.library.Library("abreast", "DEF")
_ROWS = "SymInt[]? {0}_offsets, SymInt[]? {0}_lens"
_TAGS = tuple(
    getattr(torch.Tag, name)
    for name in ("pt2_compliant_tag", "needs_exact_strides", "needs_fixed_stride_order")
    if hasattr(torch.Tag, name)
)[:2]


def _define(name: str, arguments: str, names: tuple[str, ...]) -> None:
    """An operator that calls the function of the same name; a list of one tensor is that tensor, for all rows."""
    call = getattr(_ops, name)
    written = [key for key, part in zip(names, arguments.split(", ")) if "!" in part]
    ragged = ("kv", "indices", "keys", "scores", "score", "kv_state", "score_state", "sources", "out_kv", "out_score")

    def run(*values: Any) -> None:
        named = dict(zip(names, values))
        changed = [x for key in written for x in _list(named[key]) if x is not None and not x.is_inference()]
        for key in ragged:
            if isinstance(named.get(key), (list, tuple)) and len(named[key]) == 1:
                named[key] = named[key][0]
        call(**named)
        # For autograd to see that what it may have kept is no more.
        torch.autograd.graph.increment_version(changed)

    _library.define(f"{name}({arguments}) -> ()", tags=_TAGS)
    for key in ("CPU", "CUDA"):
        _library.impl(name, run, key)
    torch.library.register_fake(f"abreast::{name}", lambda *values: None, lib=_library)


def _names(arguments: str) -> tuple[str, ...]:
    return tuple(part.split()[-1].split("=")[0] for part in arguments.split(", "))


_ARGUMENTS = {
    "sparse_attention": (
        "Tensor q, Tensor[] kv, Tensor[] indices, Tensor? sinks, str inf_sinks, float? scale, "
        f"{_ROWS.format('kv')}, {_ROWS.format('indices')}, SymInt[]? query_rows, SymInt[]? out_rows, str method, "
        "Tensor(a!) out, Tensor(b!)? status"
    ),
    "index_scores": (
        f"Tensor q, Tensor weights, Tensor[] keys, SymInt[] start_pos, SymInt ratio, {_ROWS.format('keys')}, "
        "SymInt[]? query_rows, SymInt[]? out_offsets, str method, Tensor(a!) out, Tensor(b!)? status"
    ),
    "top_k": (
        f"Tensor[] scores, SymInt k, SymInt[] offset, {_ROWS.format('scores')}, SymInt[]? out_offsets, Tensor(a!) out, Tensor(b!)? status"
    ),
    "select_keys": (
        "Tensor q, Tensor weights, Tensor[] keys, SymInt[] start_pos, SymInt ratio, SymInt k, SymInt[] offset, "
        f"{_ROWS.format('keys')}, SymInt[]? query_rows, SymInt[]? out_offsets, str method, Tensor(a!) out, Tensor(b!)? status"
    ),
    "compress": (
        "Tensor[] kv, Tensor[] score, Tensor(a!)[] kv_state, Tensor(b!)[] score_state, Tensor ape, Tensor norm, SymInt[] start_pos, "
        f"SymInt ratio, float epsilon, str layout, str emit, {_ROWS.format('kv')}, {_ROWS.format('state')}, SymInt[]? out_rows, "
        "Tensor(c!) out, Tensor(d!)? status"
    ),
    "convert_state": (
        "Tensor[] kv_state, Tensor[] score_state, SymInt[] position, SymInt ratio, str from_layout, str to_layout, SymInt to_rows, "
        f"{_ROWS.format('state')}, Tensor(a!)[] out_kv, Tensor(b!)[] out_score, {_ROWS.format('out')}"
    ),
    "gather_rows": "Tensor[] sources, SymInt[]? offsets, Tensor(a!) out",
}
for _name, _text in _ARGUMENTS.items():
    _define(_name, _text, _names(_text))


def _list(tensors: Any, rows: int | None = None, name: str = "") -> list[Tensor]:
    """A tensor for all rows is a list of one: of a list, there must be one for each of the `rows`, where those are said."""
    if not isinstance(tensors, (list, tuple)):
        return [tensors]
    if rows is not None and len(tensors) != rows:
        raise ValueError(f"{name} must be a list of {rows} rows, got {len(tensors)}")
    return list(tensors)


def _first(tensors: Any, name: str) -> Tensor:
    """The tensor that a result is like."""
    if isinstance(tensors, (list, tuple)) and not tensors:
        raise ValueError(f"{name} must be of at least one row, or out given, got an empty list")
    return _list(tensors)[0]


def _slots(k: int) -> int:
    """Of a result; more, and fewer than none, are the library's to refuse."""
    return min(max(k, 0), 2048)


def _operate(name: str, *values: Any) -> None:
    """The operator. It refuses gradients itself, but for where it is compiled: there it sees tensors without them."""
    if torch.compiler.is_compiling() and torch.is_grad_enabled():
        for value in values:
            for x in _list(value):
                if isinstance(x, Tensor) and x.requires_grad:
                    raise ValueError(f"{name}: every argument must be a tensor without gradient, as none is computed here")
    getattr(torch.ops.abreast, name)(*values)


def _ints(numbers: Any, rows: int | None = None) -> list[int] | None:
    """Numbers of the rows as a list; one for all is repeated."""
    if numbers is None:
        return None
    if isinstance(numbers, (Integral, torch.SymInt)):
        return [numbers if isinstance(numbers, torch.SymInt) else int(numbers)] * (1 if rows is None else rows)
    if isinstance(numbers, Tensor) and numbers.device.type != "cpu":
        raise TypeError(f"abreast: numbers of rows must be on the host (a device's would have to be waited for), got {numbers.device}")
    return numbers.tolist() if hasattr(numbers, "tolist") else list(numbers)


def _count(tensors: Any, inner: int, numbers: tuple[Any, Any]) -> int | None:
    """How many rows a ragged argument has, where it says so."""
    offsets, lens = numbers
    if isinstance(tensors, (list, tuple)):
        return len(tensors)
    for given in (lens, offsets):
        if given is not None and not isinstance(given, Integral):
            pool = given is offsets and lens is None and tensors.dim() == inner
            return len(given) - 1 if pool else len(given)
    return tensors.shape[0] if tensors.dim() == inner + 1 else None


def _rows(*said: int | None) -> int:
    return next((n for n in said if n is not None), 1)


def _given(numbers: Any) -> int | None:
    return None if numbers is None or isinstance(numbers, (Integral, torch.SymInt)) else len(numbers)


def sparse_attention(
    q: Tensor,
    kv: Tensor | Sequence[Tensor],
    indices: Tensor | Sequence[Tensor],
    *,
    sinks: Tensor | None = None,
    inf_sinks: str = "invalid",
    scale: float | None = None,
    kv_offsets: Any = None,
    kv_lens: Any = None,
    indices_offsets: Any = None,
    indices_lens: Any = None,
    query_rows: Any = None,
    out_rows: Any = None,
    method: str = "reference",
    out: Tensor | None = None,
    status: Tensor | None = None,
) -> Tensor:
    """See `abreast.sparse_attention`."""
    n = _rows(_given(query_rows), q.shape[0])
    out_rows = _ints(out_rows, n)
    if out is None:
        out = q.new_empty((n, q.shape[1], q.shape[2]))
    _operate(
        "sparse_attention",
        q, _list(kv, n, "sparse_attention: kv"), _list(indices, n, "sparse_attention: indices"), sinks, inf_sinks, scale,
        _ints(kv_offsets, n), _ints(kv_lens, n), _ints(indices_offsets, n), _ints(indices_lens, n),
        _ints(query_rows, n), out_rows, method, out, status,
    )  # fmt: skip
    return out


def index_scores(
    q: Tensor,
    weights: Tensor,
    keys: Tensor | Sequence[Tensor],
    start_pos: Any,
    *,
    ratio: int,
    keys_offsets: Any = None,
    keys_lens: Any = None,
    query_rows: Any = None,
    out_offsets: Any = None,
    method: str = "reference",
    out: Tensor | None = None,
    status: Tensor | None = None,
) -> Tensor:
    """See `abreast.index_scores`."""
    n = _rows(_given(query_rows), _given(start_pos), q.shape[0])
    start_pos = _ints(start_pos, n)
    if out is None:
        out = weights.new_empty((sum(max(p + 1, 0) // max(ratio, 1) for p in start_pos),))
    _operate(
        "index_scores",
        q, weights, _list(keys, n, "index_scores: keys"), start_pos, ratio, _ints(keys_offsets, n), _ints(keys_lens, n),
        _ints(query_rows, n), _ints(out_offsets, n), method, out, status,
    )  # fmt: skip
    return out


def top_k(
    scores: Tensor | Sequence[Tensor],
    *,
    k: int,
    offset: Any = 0,
    scores_offsets: Any = None,
    scores_lens: Any = None,
    out_offsets: Any = None,
    out: Tensor | None = None,
    status: Tensor | None = None,
) -> Tensor:
    """See `abreast.top_k`."""
    n = _rows(_count(scores, 1, (scores_offsets, scores_lens)))
    if out is None:
        out = _first(scores, "top_k: scores").new_empty((n, _slots(k)), dtype=torch.int32)
    _operate(
        "top_k",
        _list(scores), k, _ints(offset, n), _ints(scores_offsets, n), _ints(scores_lens, n),
        _ints(out_offsets, n), out, status,
    )  # fmt: skip
    return out


def select_keys(
    q: Tensor,
    weights: Tensor,
    keys: Tensor | Sequence[Tensor],
    start_pos: Any,
    *,
    ratio: int,
    k: int,
    offset: Any = 0,
    keys_offsets: Any = None,
    keys_lens: Any = None,
    query_rows: Any = None,
    out_offsets: Any = None,
    method: str = "reference",
    out: Tensor | None = None,
    status: Tensor | None = None,
) -> Tensor:
    """See `abreast.select_keys`."""
    n = _rows(_given(query_rows), _given(start_pos), q.shape[0])
    if out is None:
        out = q.new_empty((n, _slots(k)), dtype=torch.int32)
    _operate(
        "select_keys",
        q, weights, _list(keys, n, "select_keys: keys"), _ints(start_pos, n), ratio, k, _ints(offset, n),
        _ints(keys_offsets, n), _ints(keys_lens, n), _ints(query_rows, n), _ints(out_offsets, n), method, out, status,
    )  # fmt: skip
    return out


def compress(
    kv: Tensor | Sequence[Tensor],
    score: Tensor | Sequence[Tensor],
    kv_state: Tensor | Sequence[Tensor],
    score_state: Tensor | Sequence[Tensor],
    ape: Tensor,
    norm: Tensor,
    start_pos: Any,
    *,
    ratio: int,
    epsilon: float = 1e-6,
    layout: str = "shifted",
    emit: str = "every_token",
    kv_offsets: Any = None,
    kv_lens: Any = None,
    state_offsets: Any = None,
    state_lens: Any = None,
    out_rows: Any = None,
    out: Tensor | None = None,
    status: Tensor | None = None,
) -> Tensor:
    """See `abreast.compress`."""
    n = _rows(_given(start_pos), _count(kv, 2, (kv_offsets, kv_lens)))
    start_pos, offsets, lens = _ints(start_pos, n), _ints(kv_offsets, n), _ints(kv_lens, n)
    if out is None and out_rows is not None:
        raise ValueError("compress: out_rows must be None where out is, got numbers")
    if out is None:
        if isinstance(kv, (list, tuple)):
            tokens = [x.shape[0] for x in kv]
        elif lens is not None:
            tokens = lens
        elif offsets is not None and kv.dim() == 2:
            tokens = [end - start for start, end in zip(offsets, offsets[1:])]
        else:
            tokens = [kv.shape[-2]] * n
        if emit == "blocks":
            ends = [(p, p + t) for p, t in zip(start_pos, tokens)]
            tokens = [end // max(ratio, 1) - first // max(ratio, 1) for first, end in ends]
        out = norm.new_empty((sum(tokens), norm.shape[0]), dtype=torch.bfloat16)
    states = {"kv": kv, "score": score, "kv_state": kv_state, "score_state": score_state}
    _operate(
        "compress",
        *(_list(x, n, f"compress: {name}") for name, x in states.items()), ape, norm, start_pos, ratio, epsilon,
        layout, emit, offsets, lens, _ints(state_offsets, n), _ints(state_lens, n), _ints(out_rows, n), out, status,
    )  # fmt: skip
    return out


def convert_state(
    kv_state: Tensor | Sequence[Tensor],
    score_state: Tensor | Sequence[Tensor],
    position: Any,
    *,
    ratio: int,
    from_layout: str,
    to_layout: str,
    to_rows: int | None = None,
    state_offsets: Any = None,
    state_lens: Any = None,
    out_kv: Tensor | Sequence[Tensor] | None = None,
    out_score: Tensor | Sequence[Tensor] | None = None,
    out_offsets: Any = None,
    out_lens: Any = None,
) -> tuple[Any, Any]:
    """See `abreast.convert_state`."""
    n = _rows(_given(position), _count(kv_state, 2, (state_offsets, state_lens)))
    if to_rows is None:
        to_rows = 2 * ratio if ratio == 4 else ratio
    if (out_kv is None) != (out_score is None):
        raise ValueError("convert_state: out_kv must be given together with out_score, got one of them")
    if out_kv is None:
        like = _first(kv_state, "convert_state: kv_state")
        out_kv = like.new_empty((n, to_rows, like.shape[-1]))
        out_score = like.new_empty((n, to_rows, like.shape[-1]))
    states = {"kv_state": kv_state, "score_state": score_state}
    _operate(
        "convert_state",
        *(_list(x, n, f"convert_state: {name}") for name, x in states.items()), _ints(position, n), ratio, from_layout, to_layout, to_rows,
        _ints(state_offsets, n), _ints(state_lens, n), _list(out_kv), _list(out_score), _ints(out_offsets, n), _ints(out_lens, n),
    )  # fmt: skip
    return out_kv, out_score


def gather_rows(sources: Tensor | Sequence[Tensor], *, offsets: Any = None, out: Tensor | None = None) -> Tensor:
    """See `abreast.gather_rows`."""
    n = _rows(_count(sources, 1, (offsets, None)))
    if out is None:
        like = _first(sources, "gather_rows: sources")
        out = like.new_empty((n, like.shape[-1]))
    _operate("gather_rows", _list(sources), _ints(offsets, n), out)
    return out
