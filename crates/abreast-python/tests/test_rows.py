"""The law of rows, and every way of handing in ragged rows."""

import numpy as np
import pytest
from conftest import BF16, attention, compressor, indexer, same

import abreast


def test_joint_is_alone(lib):
    q, kv, indices = attention(rows=5)
    joint = lib.host(abreast.sparse_attention(lib.of(q), lib.all(kv), lib.all(indices)))
    for r in range(5):
        alone = abreast.sparse_attention(lib.of(q[r : r + 1]), lib.all(kv[r : r + 1]), lib.all(indices[r : r + 1]))
        assert same(lib.host(alone)[0], joint[r])


def test_every_form_of_rows_is_one(lib):
    q, kv, indices = attention()
    want = lib.host(abreast.sparse_attention(lib.of(q), lib.all(kv), lib.all(indices)))
    lens, widths = [len(k) for k in kv], [len(i) for i in indices]
    starts = np.cumsum([0, *lens])
    padded = np.full((4, max(widths)), -1, np.int32)
    caches = np.zeros((9, max(lens), 512), BF16)
    for r in range(4):
        padded[r, : widths[r]] = indices[r]
        caches[2 * r, : lens[r]] = kv[r]
    pool, flat = np.concatenate(kv), np.concatenate(indices)
    forms = [
        (kv, padded, {}),
        (tuple(kv), tuple(indices), {}),
        (pool, padded, dict(kv_offsets=starts[:4].tolist(), kv_lens=lens)),
        (pool, padded, dict(kv_offsets=starts, indices_lens=widths)),
        (pool, flat, dict(kv_offsets=starts.astype(np.int32), indices_offsets=np.cumsum([0, *widths]))),
        (caches, padded, dict(kv_offsets=[0, 2, 4, 6], kv_lens=np.array(lens, np.uint32))),
        (caches[::2][:4].copy(), padded, dict(kv_lens=lens)),
    ]
    for kv_form, indices_form, numbers in forms:
        args = [lib.all(x) if isinstance(x, (list, tuple)) else lib.of(x) for x in (kv_form, indices_form)]
        assert same(lib.host(abreast.sparse_attention(lib.of(q), *args, **numbers)), want), numbers


def test_rows_of_a_strided_pool():
    q, kv, indices = attention(widths=[20] * 4)
    caches = np.zeros((8, 200, 512), BF16)
    for r in range(4):
        caches[2 * r, : len(kv[r])] = kv[r]
    # Every second cache of a larger allocation: nothing is copied, and nothing is read beyond.
    caches[1::2] = np.nan
    got = abreast.sparse_attention(q, caches[::2], np.stack(indices), kv_lens=[len(k) for k in kv])
    assert same(got, abreast.sparse_attention(q, kv, indices))


def test_one_cache_for_all_rows():
    q, kv, _ = attention()
    indices = [np.arange(w, dtype=np.int32) for w in (3, 9, 27, 40)]
    shared = abreast.sparse_attention(q, kv[0], indices)
    assert same(shared, abreast.sparse_attention(q, [kv[0]] * 4, indices))
    cut = abreast.sparse_attention(q, kv[0], indices, kv_offsets=0, kv_lens=[3, 9, 27, 40])
    assert same(cut, shared)


def test_rows_name_queries_and_outputs(lib):
    q, kv, indices = attention()
    want = lib.host(abreast.sparse_attention(lib.of(q), lib.all(kv), lib.all(indices)))
    out = lib.writable(np.full((6, 64, 512), 7, BF16))
    args = (lib.of(q), lib.all([kv[2], kv[0]]), lib.all([indices[2], indices[0]]))
    got = abreast.sparse_attention(*args, query_rows=[2, 0], out_rows=np.array([5, 1]), out=out)
    assert got is out
    got = np.asarray(got) if lib.immutable else lib.host(got)
    assert same(got[5], want[2]) and same(got[1], want[0])
    assert (got[[0, 2, 3, 4]] == 7).all()


def test_padding_rows(lib):
    q, kv, indices = attention()
    empty = np.zeros(0, np.int32)
    status = lib.writable(np.full(4, 9, np.int32))
    args = (lib.of(q), lib.all([kv[0], kv[1][:0], kv[2], kv[3]]), lib.all([indices[0], empty, empty, indices[3]]))
    out = lib.host(abreast.sparse_attention(*args, status=status))
    want = lib.host(abreast.sparse_attention(lib.of(q), lib.all(kv), lib.all(indices)))
    assert same(out[0], want[0]) and same(out[3], want[3])
    assert not out[1:3].view(np.uint16).any()
    assert not np.asarray(lib.host(status) if not lib.immutable else status).any()


def test_no_rows_at_all(lib):
    q, _, _ = attention(rows=1)
    out = abreast.sparse_attention(lib.of(q)[:0], [], [])
    assert tuple(out.shape) == (0, 64, 512)
    assert tuple(abreast.top_k(lib.of(np.zeros((0, 9), np.float32)), k=4).shape) == (0, 4)
    given = lib.writable(np.zeros((0, 4), np.int32))
    assert abreast.top_k([], k=4, out=given) is given


def test_selection_into_the_middle_of_an_index_list(lib):
    q, weights, keys, start_pos = indexer()
    args = (lib.of(q), lib.of(weights), lib.all(keys), start_pos)
    alone = lib.host(abreast.select_keys(*args, ratio=4, k=16, offset=128))
    lists = np.full((4, 40), 5, np.int32)
    out = lib.writable(lists)
    got = abreast.select_keys(*args, ratio=4, k=16, offset=[128] * 4, out=out, out_offsets=[40 * r + 8 for r in range(4)])
    got = np.asarray(got) if lib.immutable else lib.host(got)
    assert (got[:, 8:24] == alone).all()
    assert (got[:, :8] == 5).all() and (got[:, 24:] == 5).all()


def test_scores_into_rows_of_a_matrix(lib):
    q, weights, keys, start_pos = indexer()
    args = (lib.of(q), lib.of(weights), lib.all(keys), start_pos)
    flat = lib.host(abreast.index_scores(*args, ratio=4))
    out = lib.writable(np.full((4, 60), 7, np.float32))
    got = abreast.index_scores(*args, ratio=4, out=out)
    got = np.asarray(got) if lib.immutable else lib.host(got)
    counts = [(p + 1) // 4 for p in start_pos]
    assert len(flat) == sum(counts)
    for r, part in enumerate(np.split(flat, np.cumsum(counts)[:-1])):
        assert same(got[r, : counts[r]], part)
        assert (got[r, counts[r] :] == 7).all()


def test_top_k_is_exact():
    rng = np.random.default_rng(3)
    scores = rng.integers(-9, 9, (3, 700)).astype(np.float32)
    got = abreast.top_k(scores, k=512, offset=[0, 10, 20], scores_lens=[700, 511, 0])
    for r, n in enumerate((700, 511, 0)):
        order = sorted(range(n), key=lambda t: (-scores[r, t], t))[:512]
        assert got[r].tolist() == [t + 10 * r for t in order] + [-1] * (512 - len(order))


def state(lib, arrays):
    return [lib.writable(a) for a in arrays]


@pytest.mark.parametrize(("ratio", "d"), [(4, 128), (128, 512), (4, 512)])
def test_compressor_layouts_and_conversion(lib, ratio, d):
    if lib.immutable:
        pytest.skip("arrays of JAX never change, so they are no states")
    data = compressor(ratio=ratio, d=d, tokens=[ratio + 1, 2 * ratio, 3])
    rows, window = 3, (8 if ratio == 4 else ratio)
    call = lambda kv, score, states, start, **more: abreast.compress(  # noqa: E731
        lib.all(kv), lib.all(score), *states, lib.of(data["ape"]), lib.of(data["norm"]), start, ratio=ratio, **more
    )
    shifted = [state(lib, data["kv_state"]), state(lib, data["score_state"])]
    want = lib.host(call(data["kv"], data["score"], shifted, 0))
    # A ring, as one tensor of slots.
    features = data["kv"][0].shape[1]
    ring = [
        lib.writable(np.zeros((5, window + 2, features), np.float32)),
        lib.writable(np.full((5, window + 2, features), -np.inf, np.float32)),
    ]
    blocks = call(data["kv"], data["score"], ring, [0, 0, 0], layout="ring", emit="blocks", state_offsets=[4, 0, 2])
    entries, t = [], 0
    for row in data["kv"]:
        entries += [t + i for i in range(len(row)) if (i + 1) % ratio == 0]
        t += len(row)
    assert same(lib.host(blocks), want[entries])
    # Converted states go on with the same bits.
    ends = [len(row) for row in data["kv"]]
    converted = abreast.convert_state(*ring, ends, ratio=ratio, from_layout="ring", to_layout="shifted", state_offsets=[4, 0, 2])
    for new, old in zip(converted, shifted):
        assert isinstance(new, lib.type) and tuple(new.shape) == (rows, window, features)
        del old
    more = compressor(ratio=ratio, d=d, seed=1, tokens=[ratio] * 3)
    a = call(more["kv"], more["score"], shifted, ends)
    b = call(more["kv"], more["score"], converted, ends)
    c = call(more["kv"], more["score"], ring, ends, layout="ring", state_offsets=[4, 0, 2])
    assert same(lib.host(a), lib.host(b)) and same(lib.host(a), lib.host(c))


def test_token_by_token_is_all_at_once():
    data = compressor(rows=2, tokens=[11, 11])
    fresh = lambda: [[s.copy() for s in data[n]] for n in ("kv_state", "score_state")]  # noqa: E731
    rest = (data["ape"], data["norm"])
    whole = abreast.compress(data["kv"], data["score"], *fresh(), *rest, 0, ratio=4).reshape(2, 11, 128)
    states = fresh()
    for t in range(11):
        token = ([x[t : t + 1] for x in data[n]] for n in ("kv", "score"))
        assert same(abreast.compress(*token, *states, *rest, t, ratio=4), whole[:, t])


def test_gather_rows(lib):
    rng = np.random.default_rng(0)
    for dtype in (np.float32, BF16, np.int8, np.int64, np.float16):
        table = (rng.standard_normal((9, 33)) * 50).astype(dtype)
        got = abreast.gather_rows(lib.all(table[[4, 0, 4]]))
        if lib.name == "jax" and dtype == np.int64:
            continue  # JAX made it int32
        assert same(lib.host(got), table[[4, 0, 4]])
        assert same(lib.host(abreast.gather_rows(lib.of(table), offsets=[8, 8, 1])), table[[8, 8, 1]])
        assert same(lib.host(abreast.gather_rows(lib.of(table))), table)


def test_results_do_not_change_with_what_ran_before(lib):
    q, kv, indices = attention()
    args = (lib.of(q), lib.all(kv), lib.all(indices))
    first = lib.host(abreast.sparse_attention(*args))
    poison = np.full((3, 64, 512), np.nan, BF16)
    abreast.sparse_attention(lib.of(poison), lib.all([np.full((90, 512), np.inf, BF16)] * 3), lib.all([np.arange(90, dtype=np.int32)] * 3))
    assert same(lib.host(abreast.sparse_attention(*args)), first)


def test_any_numbers_give_the_rows_that_slicing_gives():
    """Offsets and lengths by chance, at and beyond every edge: the rows of Python's slices, or an error."""
    rng = np.random.default_rng(5)
    scores, accepted, refused = rng.standard_normal(24).astype(np.float32), 0, 0
    for _ in range(2_000):
        rows = int(rng.integers(1, 4))
        entries = scores.reshape(4, 6) if rng.random() < 0.5 else scores
        most = 4 if entries.ndim == 2 else 24
        offsets = rng.integers(-1, most + 2, rows).tolist()
        lens = rng.integers(-1, (6 if entries.ndim == 2 else 24) + 2, rows).tolist()
        if entries.ndim == 2:
            legal = all(0 <= o < 4 for o in offsets) and all(0 <= n <= 6 for n in lens)
        else:
            legal = all(o >= 0 and n >= 0 and o + n <= 24 for o, n in zip(offsets, lens))
        if not legal:
            refused += 1
            with pytest.raises(ValueError, match="scores_(offsets|lens) must be"):
                abreast.top_k(entries, k=5, scores_offsets=offsets, scores_lens=lens)
            continue
        accepted += 1
        if entries.ndim == 2:
            want = [entries[o, :n] for o, n in zip(offsets, lens)]
        else:
            want = [entries[o : o + n] for o, n in zip(offsets, lens)]
        got = abreast.top_k(entries, k=5, scores_offsets=offsets, scores_lens=lens)
        assert same(got, abreast.top_k(want, k=5))
    assert accepted > 100 and refused > 100
