"""Bad arguments: an error with the library's text, and no output touched. Bad data: none, and a status word."""

import itertools
import re

import numpy as np
import pytest
from conftest import BF16, MAKE, attention, compressor, indexer, same

import abreast


def refused(error, text, function, *args, **named):
    with pytest.raises(error, match=re.escape(text)):
        function(*args, **named)


def changed(change):
    """Arguments of an attention call, of which one is wrong; and `out`, which must stay as it is."""
    q, kv, indices = attention()
    args = dict(q=q, kv=kv, indices=indices, out=np.full(q.shape, 3, BF16))
    args |= change(args)
    return args


WRONG = [
    (TypeError, "q must be bf16, got f32", lambda a: dict(q=a["q"].astype(np.float32))),
    (TypeError, "q must be bf16, got f16", lambda a: dict(q=a["q"].astype(np.float16))),
    (TypeError, "q must be bf16, got u16", lambda a: dict(q=a["q"].view(np.uint16))),
    (TypeError, "q must be given, got None", lambda a: dict(q=None)),
    (TypeError, "q must be a tensor, got str", lambda a: dict(q="q")),
    (TypeError, "q must be of a known element type", lambda a: dict(q=a["q"] > 0)),
    (TypeError, "q must be of a known element type", lambda a: dict(q=a["q"].astype(">f4"))),
    (TypeError, "q must be of a known element type", lambda a: dict(q=a["q"].astype(np.complex64))),
    (ValueError, "q must be of 3 dimensions, got shape [4, 32768]", lambda a: dict(q=a["q"].reshape(4, -1))),
    (ValueError, "q must be contiguous, got shape [4, 64, 512]", lambda a: dict(q=np.repeat(a["q"], 2, 2)[:, :, ::2])),
    (ValueError, "q must be contiguous, got shape [4, 64, 512]", lambda a: dict(q=a["q"][::-1])),
    (ValueError, "q must be of a head size divisible by 32, got 40", lambda a: dict(q=np.zeros((4, 64, 40), BF16))),
    (ValueError, "q must be of 1 to 128 heads, got 129 heads", lambda a: dict(q=np.zeros((4, 129, 512), BF16))),
    (ValueError, "kv must be a list of 4 rows, got 3", lambda a: dict(kv=a["kv"][:3])),
    (ValueError, "kv must be a list of 4 rows, got 0", lambda a: dict(kv=[])),
    (ValueError, "rows[2].kv must be [_, 512], got [9, 256]", lambda a: dict(kv=[*a["kv"][:2], np.zeros((9, 256), BF16), a["kv"][3]])),
    (ValueError, "rows[1].kv must be of 2 dimensions", lambda a: dict(kv=[a["kv"][0], a["kv"][1][0], *a["kv"][2:]])),
    (TypeError, "rows[3].kv must be bf16, got f64", lambda a: dict(kv=[*a["kv"][:3], np.zeros((9, 512))])),
    (TypeError, "rows[0].kv must be a tensor, got list", lambda a: dict(kv=[[1, 2], *a["kv"][1:]])),
    (ValueError, "kv must be a list, or of 2 or 3 dimensions", lambda a: dict(kv=np.zeros((1, 1, 9, 512), BF16))),
    (ValueError, "kv must be of 4 rows, got 2", lambda a: dict(kv=np.zeros((2, 9, 512), BF16))),
    (TypeError, "rows[0].indices must be i32, got i64", lambda a: dict(indices=[i.astype(np.int64) for i in a["indices"]])),
    (ValueError, "kv_offsets must be None where kv is a list", lambda a: dict(kv_offsets=[0] * 4)),
    (ValueError, "kv_lens must be None where kv is a list", lambda a: dict(kv_lens=3)),
    (ValueError, "kv_offsets must be given, as the lengths are", lambda a: dict(kv=a["kv"][3], kv_lens=3)),
    (ValueError, "kv_offsets must be of 4 rows, got 3", lambda a: dict(kv=a["kv"][3], kv_offsets=[0] * 3, kv_lens=3)),
    (ValueError, "kv_lens must be of 4 rows, got 5", lambda a: dict(kv=a["kv"][3], kv_offsets=0, kv_lens=[1] * 5)),
    (ValueError, "kv_offsets must be 5 numbers, or 4 with kv_lens", lambda a: dict(kv=a["kv"][3], kv_offsets=[0] * 4)),
    (ValueError, "rows[2].kv_offsets must be at least 9, the one before", lambda a: dict(kv=a["kv"][3], kv_offsets=[0, 9, 8, 9, 9])),
    (
        ValueError,
        "rows[1].kv_offsets must be within its range, and not negative, got -1",
        lambda a: dict(kv=a["kv"][3], kv_offsets=[0, -1, 0, 0], kv_lens=1),
    ),
    (ValueError, "rows[1].kv_offsets must be at most 130, got 131", lambda a: dict(kv=a["kv"][3], kv_offsets=[0, 131, 0, 0], kv_lens=0)),
    (
        ValueError,
        "rows[3].kv_lens must be within the 30 rows of kv, got 31",
        lambda a: dict(kv=a["kv"][3], kv_offsets=100, kv_lens=[30, 30, 30, 31]),
    ),
    (ValueError, "rows[0].kv_offsets must be at most 3, got 4", lambda a: dict(kv=np.zeros((4, 9, 512), BF16), kv_offsets=4)),
    (ValueError, "rows[0].kv_lens must be within the 9 rows of kv", lambda a: dict(kv=np.zeros((4, 9, 512), BF16), kv_lens=10)),
    (ValueError, "rows[0].kv_offsets must be at most 130", lambda a: dict(kv=a["kv"][3], kv_offsets=2**62, kv_lens=1)),
    (TypeError, "kv_offsets must be a whole number, a list of them", lambda a: dict(kv=a["kv"][3], kv_offsets=[0.5] * 4, kv_lens=1)),
    (TypeError, "kv_offsets must be a whole number, a list of them", lambda a: dict(kv=a["kv"][3], kv_offsets=np.zeros(4), kv_lens=1)),
    (TypeError, "kv_offsets must be a whole number, a list of them", lambda a: dict(kv=a["kv"][3], kv_offsets="0", kv_lens=1)),
    (ValueError, "sinks must be [64], got [32]", lambda a: dict(sinks=np.zeros(32, np.float32))),
    (TypeError, "sinks must be f32, got f64", lambda a: dict(sinks=np.zeros(64))),
    (ValueError, 'inf_sinks must be "invalid" or "none"', lambda a: dict(sinks=np.zeros(64, np.float32), inf_sinks="zero")),
    (ValueError, "scale must be finite, got inf", lambda a: dict(scale=float("inf"))),
    (TypeError, "scale must be a number, got str", lambda a: dict(scale="1")),
    (ValueError, 'method must be "reference" or "fast", got "quick"', lambda a: dict(method="quick")),
    (ValueError, 'method must be "reference" or "fast", got 3', lambda a: dict(method=3)),
    (ValueError, "rows[1].query must be below 4, got 4", lambda a: dict(query_rows=[0, 4, 1, 1])),
    (ValueError, "rows[2].out must be below 4, got 9", lambda a: dict(out_rows=[0, 1, 9, 2])),
    (ValueError, "rows[3].out must be apart from all others, got the place of rows[0].out", lambda a: dict(out_rows=[1, 2, 3, 1])),
    (ValueError, "out must be [_, 64, 512], got [4, 64, 256]", lambda a: dict(out=np.zeros((4, 64, 256), BF16))),
    (TypeError, "out must be bf16, got f32", lambda a: dict(out=np.zeros((4, 64, 512), np.float32))),
    (ValueError, "out must be apart from all others, got a part of q", lambda a: dict(out=a["q"])),
    (ValueError, "status must be [4], got [5]", lambda a: dict(status=np.zeros(5, np.uint32))),
    (TypeError, "status must be u32, got i64", lambda a: dict(status=np.zeros(4, np.int64))),
    (TypeError, "unexpected keyword argument", lambda a: dict(softmax_scale=1.0)),
]


@pytest.mark.parametrize(("error", "text", "change"), WRONG, ids=[text for _, text, _ in WRONG])
def test_refused_and_untouched(error, text, change):
    args = changed(change)
    out = args["out"]
    before = out.copy()
    if error is TypeError and "unexpected" in text:
        refused(error, text, abreast.sparse_attention, **args)
    else:
        refused(error, f"sparse_attention: {text}", abreast.sparse_attention, **args)
    assert same(out, before)


def test_numbers_of_numpy_are_numbers():
    scores = np.arange(12, dtype=np.float32).reshape(3, 4)
    want = abreast.top_k(scores, k=2, offset=[1, 1, 1])
    assert same(abreast.top_k(scores, k=np.int64(2), offset=np.int32(1)), want)
    assert same(abreast.top_k(scores, k=2, offset=np.ones(3, np.int64)), want)
    refused(TypeError, "k must be a whole number, got ndarray", abreast.top_k, scores, k=np.array(2))
    refused(ValueError, "top_k: offset must be of 1 dimensions, got shape []", abreast.top_k, scores, k=2, offset=np.array(1))


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def test_read_only_arrays_are_read_and_never_written():
    q, kv, indices = attention()
    frozen = (read_only(q), [read_only(k) for k in kv], [read_only(i) for i in indices])
    want = abreast.sparse_attention(q, kv, indices)
    assert same(abreast.sparse_attention(*frozen), want)
    text = "must be writable, got a read-only array"
    out = read_only(want)
    refused(ValueError, f"sparse_attention: out {text}", abreast.sparse_attention, q, kv, indices, out=out)
    status = read_only(np.zeros(4, np.uint32))
    refused(ValueError, f"status {text}", abreast.sparse_attention, q, kv, indices, status=status)
    data = compressor()
    data["score_state"][1] = read_only(data["score_state"][1])
    states = [s.copy() for s in data["kv_state"]]
    refused(ValueError, f"compress: rows[1].score_state {text}", abreast.compress, **data, ratio=4)
    assert all(same(a, b) for a, b in zip(states, data["kv_state"]))


def test_an_immutable_library_is_never_written():
    jax = MAKE["jax"]().jax
    q, kv, indices = attention()
    out = jax.numpy.zeros(q.shape, BF16)
    refused(ValueError, "out must be writable", abreast.sparse_attention, q, kv, indices, out=out)
    data = compressor()
    data["kv_state"] = [jax.numpy.asarray(s) for s in data["kv_state"]]
    refused(ValueError, "rows[0].kv_state must be writable", abreast.compress, **data, ratio=4)


def test_nothing_written_is_anything_else_too():
    q, kv, indices = attention()
    pool = np.zeros((8, 64, 512), BF16)
    pool[:4] = q
    refused(ValueError, "got a part of q", abreast.sparse_attention, pool[:4], kv, indices, out=pool[3:7])
    assert abreast.sparse_attention(pool[:4], kv, indices, out=pool[4:]) is not None
    data = compressor()
    data["score_state"][2] = data["kv_state"][0]
    refused(ValueError, "must be apart from all others", abreast.compress, **data, ratio=4)
    pool = np.zeros((20, 256), np.float32)
    data |= dict(kv_state=pool, score_state=np.full((3, 8, 256), -np.inf, np.float32), state_offsets=[0, 2, 1])
    refused(ValueError, "must be None", abreast.compress, **(data | dict(kv_state=[pool])), ratio=4)
    table = np.zeros((4, 8), np.float32)
    refused(ValueError, "gather_rows: out must be apart from all others", abreast.gather_rows, table[:2], out=table[1:3])


def test_unaligned_memory_is_refused():
    raw = np.zeros(4 * 64 * 512 * 2 + 1, np.uint8)
    q = raw[1:].view(np.uint16).reshape(4, 64, 512)
    _, kv, indices = attention()
    q = np.frombuffer(raw, np.dtype(BF16), count=4 * 64 * 512, offset=1).reshape(4, 64, 512)
    refused(ValueError, "q must be aligned to 2 bytes", abreast.sparse_attention, q, kv, indices)


def test_every_operation_names_itself():
    q, weights, keys, start_pos = indexer()
    refused(ValueError, "index_scores: ratio must be at least 1, got 0", abreast.index_scores, q, weights, keys, start_pos, ratio=0)
    refused(
        ValueError, "index_scores: weights must be [4, 64], got [3, 64]", abreast.index_scores, q, weights[:3], keys, start_pos, ratio=4
    )
    refused(
        ValueError,
        "rows[1].keys must be of at least (start_pos + 1) / ratio = 16 rows, got 9 rows",
        abreast.index_scores,
        q,
        weights,
        [k[:9] for k in keys],
        start_pos,
        ratio=4,
    )
    refused(
        ValueError,
        "rows[1].start_pos must be within its range, and not negative, got -1",
        abreast.index_scores,
        q,
        weights,
        keys,
        [0, -1, 0, 0],
        ratio=4,
    )
    refused(
        ValueError,
        "start_pos must be of 4 rows, got 3",
        abreast.index_scores,
        q,
        weights,
        keys,
        [1, 2, 3],
        ratio=4,
        query_rows=[0, 1, 2, 3],
    )
    refused(ValueError, "select_keys: k must be 1 to 2048, got 2049", abreast.select_keys, q, weights, keys, start_pos, ratio=4, k=2049)
    refused(
        ValueError,
        "select_keys: rows[0].offset must be at least 0, got -1",
        abreast.select_keys,
        q,
        weights,
        keys,
        start_pos,
        ratio=4,
        k=4,
        offset=-1,
    )
    refused(TypeError, "top_k: k must be a whole number, got float", abreast.top_k, weights, k=1.5)
    refused(ValueError, "top_k: k must be a count, got -4", abreast.top_k, weights, k=-4)
    refused(
        ValueError, "top_k: rows[1].out must be at most", abreast.top_k, weights, k=4, out=np.zeros(16, np.int32), out_offsets=[0, 13, 4, 8]
    )
    refused(ValueError, "top_k: scores must be of at least one row, or out given", abreast.top_k, [], k=4)
    data = compressor()
    refused(ValueError, "compress: epsilon must be finite and positive, got 0", abreast.compress, **data, ratio=4, epsilon=0.0)
    refused(ValueError, 'compress: layout must be "shifted" or "ring"', abreast.compress, **data, ratio=4, layout="line")
    refused(ValueError, "compress: out_rows must be None where out is", abreast.compress, **data, ratio=4, out_rows=[0, 5, 11])
    short = data | dict(kv_state=[s[:7] for s in data["kv_state"]])
    refused(ValueError, "compress: rows[0].kv_state must be [8, 256], got [7, 256]", abreast.compress, **short, ratio=4)
    states = (data["kv_state"], data["score_state"], [0, 1, 2])
    refused(
        ValueError,
        "convert_state: to_rows must be 8 or None, got 9",
        abreast.convert_state,
        *states,
        ratio=4,
        from_layout="shifted",
        to_layout="shifted",
        to_rows=9,
    )
    refused(
        ValueError,
        "convert_state: out_kv must be given together with out_score",
        abreast.convert_state,
        *states,
        ratio=4,
        from_layout="shifted",
        to_layout="ring",
        out_kv=data["kv_state"],
    )
    refused(
        TypeError, "gather_rows: rows[1].sources must be f32, got f64", abreast.gather_rows, [weights[0], weights[1].astype(np.float64)]
    )
    refused(ValueError, "gather_rows: rows[1].source must be [64], got [63]", abreast.gather_rows, [weights[0], weights[1][:63]])
    refused(ValueError, "gather_rows: rows[1].offsets must be at most 3, got 4", abreast.gather_rows, weights, offsets=[0, 4])


def test_hostile_indices_close_their_row_alone(lib):
    q, kv, indices = attention()
    want = lib.host(abreast.sparse_attention(lib.of(q), lib.all(kv), lib.all(indices)))
    for bad in (-2, -(2**31), 2**31 - 1, len(kv[1]), len(kv[1]) + 1):
        poisoned = [i.copy() for i in indices]
        poisoned[1][7] = bad
        status = lib.writable(np.zeros(4, np.int32))
        got = lib.host(abreast.sparse_attention(lib.of(q), lib.all(kv), lib.all(poisoned), status=status))
        words = np.asarray(status) if lib.immutable else lib.host(status)
        assert words.tolist() == [0, abreast.STATUS["INVALID_INDEX"], 0, 0]
        assert not got[1].view(np.uint16).any()
        assert all(same(got[r], want[r]) for r in (0, 2, 3))


def test_nonfinite_data_stays_where_it_is(lib):
    q, kv, indices = attention()
    want = lib.host(abreast.sparse_attention(lib.of(q), lib.all(kv), lib.all(indices)))
    for value in (np.nan, -np.nan, np.inf, -np.inf):
        bad_q, bad_kv = q.copy(), [k.copy() for k in kv]
        bad_q[0, 5, 9] = value
        bad_kv[2][indices[2][indices[2] >= 0][0], 3] = value
        status = lib.writable(np.zeros(4, np.int32))
        got = lib.host(abreast.sparse_attention(lib.of(bad_q), lib.all(bad_kv), lib.all(indices), status=status))
        words = np.asarray(status) if lib.immutable else lib.host(status)
        names = [abreast.status_names(word) for word in words.tolist()]
        assert names == ["NONFINITE_QUERY", "OK", "NONFINITE_KV", "OK"]
        assert not got[0, 5].view(np.uint16).any() and not got[2].view(np.uint16).any()
        others = [h for h in range(64) if h != 5]
        assert same(got[0, others], want[0, others])
        assert same(got[1], want[1]) and same(got[3], want[3])


def test_sinks_of_minus_infinity(lib):
    q, kv, indices = attention()
    args = (lib.of(q), lib.all(kv), lib.all(indices))
    none = lib.host(abreast.sparse_attention(*args))
    sinks = np.zeros(64, np.float32)
    finite = lib.host(abreast.sparse_attention(*args, sinks=lib.of(sinks)))
    sinks[[3, 40]] = -np.inf
    status = lib.writable(np.zeros(4, np.int32))
    closed = lib.host(abreast.sparse_attention(*args, sinks=lib.of(sinks), status=status))
    words = np.asarray(status) if lib.immutable else lib.host(status)
    assert words.tolist() == [abreast.STATUS["NONFINITE_SINK"]] * 4
    translated = lib.host(abreast.sparse_attention(*args, sinks=lib.of(sinks), inf_sinks="none"))
    for head in range(64):
        if head in (3, 40):
            assert not closed[:, head].view(np.uint16).any()
            assert same(translated[:, head], none[:, head])
        else:
            assert same(closed[:, head], finite[:, head]) and same(translated[:, head], finite[:, head])
    # What else is not finite still fails closed.
    sinks[[7, 8]] = np.nan, np.inf
    out = lib.host(abreast.sparse_attention(*args, sinks=lib.of(sinks), inf_sinks="none"))
    assert not out[:, [7, 8]].view(np.uint16).any()


def test_any_wrong_type_is_an_error_and_no_crash():
    things = [
        None,
        0,
        -1,
        2.5,
        "x",
        b"x",
        [],
        [None],
        {},
        object(),
        np.float32(1),
        np.zeros(()),
        np.zeros((2, 2)),
        np.zeros(3, object),
        type,
    ]
    functions = [
        (abreast.sparse_attention, 3, {}),
        (abreast.index_scores, 4, dict(ratio=4)),
        (abreast.top_k, 1, dict(k=4)),
        (abreast.select_keys, 4, dict(ratio=4, k=4)),
        (abreast.gather_rows, 1, {}),
    ]
    for function, n, named in functions:
        for args in itertools.product(things, repeat=min(n, 2)):
            args = (*args, *[things[0]] * (n - len(args)))
            try:
                function(*args, **named)
            except (TypeError, ValueError):
                continue
            # The few that are legal have no rows, or rows of one plain type.
            assert function in (abreast.gather_rows,), args


def test_a_new_result_has_no_gaps():
    """What nobody writes would be whatever was in that memory before."""
    q, kv, indices = attention()
    refused(
        ValueError, "sparse_attention: rows[0].out must be below 4, got 5", abreast.sparse_attention, q, kv, indices, out_rows=[5, 0, 1, 2]
    )
    refused(ValueError, "rows[3].out must be below 4, got 4", abreast.sparse_attention, q, kv, indices, out_rows=[0, 1, 2, 4])
    want = abreast.sparse_attention(q, kv, indices)
    assert same(abreast.sparse_attention(q, kv, indices, out_rows=[3, 2, 1, 0]), want[::-1])


def test_one_element_type_is_not_another_of_its_size():
    for a, b in itertools.permutations([np.uint32, np.int32, np.float32], 2):
        x, y = np.ones(3, a), np.ones(3, b)
        refused(TypeError, "rows[1].sources must be", abreast.gather_rows, [x, y])
        refused(TypeError, "out must be", abreast.gather_rows, [x, x.copy()], out=np.zeros((2, 3), b))


def test_numbers_beyond_any_memory_are_the_arguments_fault():
    """No memory is asked for on account of a wrong number."""
    q, weights, keys, start_pos = indexer()
    for k in (2049, 2**40, 2**62, 2**63 - 1):
        refused(ValueError, "top_k: k must be 1 to 2048", abreast.top_k, weights, k=k)
        refused(ValueError, "select_keys: k must be 1 to 2048", abreast.select_keys, q, weights, keys, start_pos, ratio=4, k=k)
    for position in (2**30, 2**32 - 1):
        text = "rows[0].keys must be of at least (start_pos + 1) / ratio ="
        refused(ValueError, f"index_scores: {text}", abreast.index_scores, q, weights, keys, position, ratio=1)
        refused(ValueError, f"select_keys: {text}", abreast.select_keys, q, weights, keys, position, ratio=1, k=4)


def test_more_rows_than_memory_can_name():
    """Empty rows, and one row many times, are arrays of any number of rows."""
    row = np.zeros(4, np.float32)
    many = [np.broadcast_to(row, (2**42, 4)), np.zeros((2**42, 0), np.float32), np.zeros((2**60, 0), np.float32)]
    for rows in many:
        refused(MemoryError, "top_k: out of memory for a list of", abreast.top_k, rows, k=2)
        refused(MemoryError, "gather_rows: out of memory for a list of", abreast.gather_rows, rows)
    q = np.zeros((2**42, 64, 0), BF16)
    refused(MemoryError, "out of memory for a list of", abreast.sparse_attention, q, np.zeros((3, 0), BF16), np.zeros(3, np.int32))
    weights, keys = np.zeros((2**42, 0), np.float32), np.zeros((3, 0), BF16)
    q = np.zeros((2**42, 0, 0), BF16)
    refused(MemoryError, "out of memory for a list of", abreast.index_scores, q, weights, keys, 3, ratio=4)
    refused(MemoryError, "out of memory for a list of", abreast.select_keys, q, weights, keys, 3, ratio=4, k=4)


def test_a_mask_does_not_go_unnoticed():
    scores = np.ma.masked_array(np.arange(8, dtype=np.float32).reshape(2, 4), mask=[[0, 0, 0, 1]] * 2)
    refused(TypeError, "top_k: scores must be an array without a mask, got MaskedArray", abreast.top_k, scores, k=2)
    assert abreast.top_k(scores.data, k=1).tolist() == [[3], [3]]


def test_the_meaning_of_sinks_is_checked_always():
    q, kv, indices = attention()
    for sinks in (None, np.zeros(64, np.float32)):
        for meaning in ("zero", None, True):
            refused(ValueError, "inf_sinks must be", abreast.sparse_attention, q, kv, indices, sinks=sinks, inf_sinks=meaning)
    for dtype in (np.float16, np.float64, np.int32):
        for meaning in ("none", "invalid"):
            sinks = np.zeros(64, dtype)
            refused(TypeError, "sinks must be f32, got", abreast.sparse_attention, q, kv, indices, sinks=sinks, inf_sinks=meaning)


def test_no_rows_of_any_form():
    numbers = dict(ratio=4, from_layout="ring", to_layout="shifted")
    assert abreast.convert_state([], [], [], out_kv=[], out_score=[], **numbers) == ([], [])
    out = np.zeros((0, 8, 256), np.float32)
    assert abreast.convert_state([], [], [], out_kv=out, out_score=out.copy(), **numbers)[0] is out
