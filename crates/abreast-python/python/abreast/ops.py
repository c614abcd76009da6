"""The operations: one function each.

Common to all:

- **Tensors** are contiguous NumPy arrays (bf16: `ml_dtypes.bfloat16`, or `abreast.view(x, "bfloat16")` over uint16) or anything that
  speaks DLPack, all on one device. They are borrowed, never copied.
- **Ragged arguments** (`kv`, `indices`, `keys`, ...) are a list of tensors, one a row; or one tensor for all rows. Of a *pool* with as
  many dimensions as a row, row `r` is `x[offsets[r] : offsets[r] + lens[r]]`; without `lens`, `offsets` has one number more than rows, as
  `cu_seqlens` has; without both, every row is all of `x`. Of a tensor with one dimension more, row `r` is `x[offsets[r], : lens[r]]`
  (by default `x[r]`): `offsets` are the slots of requests.
- **Numbers of rows** (offsets, lengths, positions) are a number for all, a list, or an integer array on the host. They are read at
  the call; a captured CUDA graph keeps those of its capture.
- **`out`** is written and returned; without it, a result is an array of the first tensor's library (where that has none of the type:
  an `abreast.Tensor`). It must not overlap any other argument. Rows that nothing names are left as they are.
- **`status`**: 32-bit words, one a row, that say what was wrong with a row's *data* (`abreast.STATUS`, `abreast.status_names`). Bad
  data is no error: it gives zeros, or "not selected", for that row or head alone.
- **`method`**: "reference" (the same bits on every CPU and on CUDA) or "fast".
- **`stream`**: on CUDA, the stream to work on, by its address or as a stream of PyTorch or CuPy; by default the current one of the first
  tensor's library. With a stream of your own, keep the tensors until the work is done, and call `abreast.release_stream` before it is
  destroyed. Tensors of a library that does not tell its stream (JAX) are waited for at the end of a call, unless `stream` is given.

A bad argument is a `ValueError` (or `TypeError`: a wrong element type, something that is no tensor) that names operation, argument, row,
what it must be and what it is; then no output was touched. `MemoryError`: out of memory; `RuntimeError`: no such device, or it failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Union

from . import _abreast
from .sinks import without_inf

Array = Any
"""A NumPy array, or an object with `__dlpack__` and `__dlpack_device__`."""
Ragged = Union[Array, Sequence[Array]]
"""A list of tensors, one a row; or one tensor for all rows."""
Numbers = Union[int, Sequence[int], Array]
"""A number for all rows, or one for each."""
Method = Literal["reference", "fast"]
Layout = Literal["shifted", "ring"]
Emit = Literal["every_token", "blocks"]

__all__ = [
    "compress",
    "convert_state",
    "gather_rows",
    "index_scores",
    "select_keys",
    "sparse_attention",
    "top_k",
]


def sparse_attention(
    q: Array,
    kv: Ragged,
    indices: Ragged,
    *,
    sinks: Array | None = None,
    inf_sinks: Literal["invalid", "none"] = "invalid",
    scale: float | None = None,
    kv_offsets: Numbers | None = None,
    kv_lens: Numbers | None = None,
    indices_offsets: Numbers | None = None,
    indices_lens: Numbers | None = None,
    query_rows: Numbers | None = None,
    out_rows: Numbers | None = None,
    method: Method = "reference",
    out: Array | None = None,
    status: Array | None = None,
    stream: Any = None,
) -> Array:
    """Attention over selected slots of a cache that holds keys and values in one, with learned sinks.

    For every row, head h and selected slot j::

        logit[h][j] = scale * dot(q[h], kv[indices[j]])        -1: skipped
        out[h]      = sum_j softmax(logit[h] and sinks[h])[j] * kv[indices[j]]

    A sink takes weight and gives no value. The order of the indices is the order of summation.

    Args:
        q: `[queries, heads, dim]` bfloat16; 1 to 128 heads, `dim` a multiple of 32, at most 2^20.
        kv: rows of `[kv_len, dim]` bfloat16.
        indices: rows of `[width]` int32 (FlashMLA's `indices`, with `indices_lens` as its `topk_length`); -1 for no slot.
        sinks: `[heads]` float32 logits (FlashMLA's `attn_sink`).
        inf_sinks: what -inf in `sinks` means: "none", this head has no sink, as in FlashMLA; "invalid", the head fails closed.
        scale: of every dot product (FlashMLA's `sm_scale`); `dim ** -0.5` by default.
        query_rows: which query each row takes; row r takes query r by default.
        out_rows: which row of `out` each row writes; row r by default.
        out: `[outputs, heads, dim]` bfloat16.
        status: `[rows]` uint32 or int32.

    Returns:
        `[rows, heads, dim]` bfloat16, or `out`. A row without slots is zero.

    Bad data: an index below -1 or beyond the cache, or a non-finite attended row of the cache, makes the row zero; a non-finite query or
    sink, or an overflow, its head.
    """
    sinks = without_inf(sinks, inf_sinks)
    return _abreast.sparse_attention(locals())


def index_scores(
    q: Array,
    weights: Array,
    keys: Ragged,
    start_pos: Numbers,
    *,
    ratio: int,
    keys_offsets: Numbers | None = None,
    keys_lens: Numbers | None = None,
    query_rows: Numbers | None = None,
    out_offsets: Numbers | None = None,
    method: Method = "reference",
    out: Array | None = None,
    status: Array | None = None,
    stream: Any = None,
) -> Array:
    """The lightning indexer's scores of the `(start_pos + 1) // ratio` keys that each row may see::

        score[t] = sum_h max(dot(q[h], keys[t]), 0) * weights[h]

    Args:
        q: `[queries, heads, dim]` bfloat16; `dim` a multiple of 32, at most 2^20.
        weights: `[queries, heads]` float32, all scales folded in.
        keys: rows of `[kv_len, dim]` bfloat16, at least as long as what is visible.
        start_pos: position of each row's token.
        ratio: tokens per key.
        out: float32 of any shape; row r starts at `out[r]` where it has several dimensions.
        out_offsets: where each row starts instead, in elements.

    Returns:
        All scores, `[sum of the rows' counts]` float32, row behind row; or `out`.

    Bad data: a score that is not finite, or has a term that is not, is -inf.
    """
    return _abreast.index_scores(locals())


def top_k(
    scores: Ragged,
    *,
    k: int,
    offset: Numbers = 0,
    scores_offsets: Numbers | None = None,
    scores_lens: Numbers | None = None,
    out_offsets: Numbers | None = None,
    out: Array | None = None,
    status: Array | None = None,
    stream: Any = None,
) -> Array:
    """The `k` best of each row's scores, by score and then by lower index, in that order: one right answer, ties included.

    Args:
        scores: rows of `[n]` float32.
        k: 1 to 2048.
        offset: added to every index of a row.
        out: int32 of any shape; row r starts at `out[r]` where it has several dimensions.
        out_offsets: where each row's k slots start instead, in elements: into the middle of an index list, say.

    Returns:
        `[rows, k]` int32, -1 where there is none; or `out`.

    Bad data: a score that is not finite is never selected.
    """
    return _abreast.top_k(locals())


def select_keys(
    q: Array,
    weights: Array,
    keys: Ragged,
    start_pos: Numbers,
    *,
    ratio: int,
    k: int,
    offset: Numbers = 0,
    keys_offsets: Numbers | None = None,
    keys_lens: Numbers | None = None,
    query_rows: Numbers | None = None,
    out_offsets: Numbers | None = None,
    method: Method = "reference",
    out: Array | None = None,
    status: Array | None = None,
    stream: Any = None,
) -> Array:
    """`index_scores` and `top_k` in one call, with the bits of the two; the scores stay in scratch memory.

    Args: those of the two.

    Returns:
        `[rows, k]` int32, -1 where there is none; or `out`.
    """
    return _abreast.select_keys(locals())


def compress(
    kv: Ragged,
    score: Ragged,
    kv_state: Ragged,
    score_state: Ragged,
    ape: Array,
    norm: Array,
    start_pos: Numbers,
    *,
    ratio: int,
    epsilon: float = 1e-6,
    layout: Layout = "shifted",
    emit: Emit = "every_token",
    kv_offsets: Numbers | None = None,
    kv_lens: Numbers | None = None,
    state_offsets: Numbers | None = None,
    state_lens: Numbers | None = None,
    out_rows: Numbers | None = None,
    out: Array | None = None,
    status: Array | None = None,
    stream: Any = None,
) -> Array:
    """The learned recurrent compressor: every `ratio` tokens of a request become one cache entry. With coff = 2 for ratio 4, else 1:

    Args:
        kv: rows of `[tokens, coff * d]` float32, consecutive tokens of a request.
        score: as `kv`, with the same offsets and lengths.
        kv_state: rows of `[state rows, coff * d]` float32, read and written.
        score_state: as `kv_state`. A fresh state is kv 0, score -inf.
        ape: `[ratio, coff * d]` float32.
        norm: `[d]` float32, `d` a multiple of 32, at most 2^20.
        start_pos: position of each row's first token.
        layout: "shifted": states have coff * ratio rows; "ring": as many or more, the token at position p in row `p % rows`.
        emit: "every_token" (zeros where no block is complete) or "blocks".
        out_rows: the first row of `out` of each row; one behind the other by default.

    Returns:
        `[outputs, d]` bfloat16, or `out`: entries before rotary embedding. The bits are those of feeding the tokens one by one.

    Bad data: a window that holds something not finite (a score of -inf is legal) gives a zero row.
    """
    return _abreast.compress(locals())


def convert_state(
    kv_state: Ragged,
    score_state: Ragged,
    position: Numbers,
    *,
    ratio: int,
    from_layout: Layout,
    to_layout: Layout,
    to_rows: int | None = None,
    state_offsets: Numbers | None = None,
    state_lens: Numbers | None = None,
    out_kv: Ragged | None = None,
    out_score: Ragged | None = None,
    out_offsets: Numbers | None = None,
    out_lens: Numbers | None = None,
    stream: Any = None,
) -> tuple[Ragged, Ragged]:
    """A compressor's states in another layout, or in a ring of another size; what the old one no longer holds is fresh.

    Args:
        kv_state: rows of `[state rows, coff * d]` float32.
        score_state: as `kv_state`.
        position: position of each row's next token.
        to_rows: state rows of the results; the fewest that the layout takes by default.
        out_kv: as `kv_state`, written.
        out_score: as `score_state`, written.

    Returns:
        Two of `[rows, to_rows, coff * d]` float32; or `out_kv` and `out_score`.
    """
    return _abreast.convert_state(locals())


def gather_rows(
    sources: Ragged,
    *,
    offsets: Numbers | None = None,
    out: Array | None = None,
    stream: Any = None,
) -> Array:
    """Rows from many places side by side, bit for bit, of any element type.

    Args:
        sources: rows of `[n]`: a list, or `[many, n]` with `offsets` naming the rows.

    Returns:
        `[rows, n]`, or `out`.
    """
    lens = None
    return _abreast.gather_rows(locals())
