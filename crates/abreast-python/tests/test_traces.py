"""The recorded decode steps of Hugging Face's DeepSeek-V4, and the edge cases, through every library of arrays."""

import numpy as np
import pytest
from conftest import TRACES, same
from traces import load

import abreast

GROUPS = load(TRACES, "manifest.json") + load(TRACES, "edge.json")
RUN = {}


def run(core):
    def register(function):
        RUN[core] = function
        return function

    return register


def near(got, want, relative, absolute):
    got, want = got.astype(np.float64), want.astype(np.float64)
    assert (np.abs(got - want) <= relative * np.abs(want) + absolute).all(), np.abs(got - want).max()


@run("sparse_attention")
def sparse_attention(lib, cases):
    q = np.stack([case.inputs["q"] for case in cases])
    status = lib.writable(np.zeros(len(cases), np.int32))
    out = abreast.sparse_attention(
        lib.of(q),
        lib.all(case.inputs["kv"][: case["kv_len"]] for case in cases),
        lib.all(case.inputs["indices"] for case in cases),
        sinks=lib.of(cases[0].inputs["sinks"]) if "sinks" in cases[0].inputs else None,
        scale=cases[0]["scale"],
        status=status,
    )
    assert isinstance(out, lib.type)
    return list(lib.host(out))


def judge_attention(case, got):
    for name, relative in [("out_f32", 2**-8), ("out_bf16", 2**-7)]:
        want = case.outputs.get(name)
        if isinstance(want, str):
            assert not got.view(np.uint16).any()
        elif want is not None:
            kept = [h for h in range(len(got)) if h not in case.get("zero_heads", [])]
            near(got[kept], want[kept], relative, 2e-5)
    for head in case.get("zero_heads", []):
        assert not got[head].view(np.uint16).any()


@run("indexer")
def indexer(lib, cases):
    q = lib.of(np.stack([case.inputs["q"] for case in cases]))
    weights = lib.of(np.stack([case.inputs["weights"] for case in cases]))
    keys = lib.all(case.inputs["keys"][: case["n_keys"]] for case in cases)
    start_pos = [case["pos"] for case in cases]
    ratio, k = cases[0]["ratio"], cases[0]["top_k"]
    offset = [case.get("offset", 0) for case in cases]
    scores = lib.host(abreast.index_scores(q, weights, keys, start_pos, ratio=ratio))
    selected = lib.host(abreast.select_keys(q, weights, keys, start_pos, ratio=ratio, k=k, offset=offset))
    parts = np.split(scores, np.cumsum([case["valid_count"] for case in cases])[:-1])
    again = abreast.top_k(lib.all(parts), k=k, offset=offset)
    assert same(lib.host(again), selected)
    return list(zip(selected, parts))


def judge_indexer(case, got):
    indices, scores = got
    want, exact = case.outputs["indices"], case.outputs.get("scores_f64")
    if case["source"] == "oracle" or exact is None:
        assert (indices == want).all()
    else:
        offset = case.get("offset", 0)
        assert sorted(indices) == sorted(want)
        filled = want >= 0
        most = np.abs(exact[np.isfinite(exact)]).max(initial=0)
        near(exact[indices[filled] - offset], exact[want[filled] - offset], 0, 2e-6 * most)
    if exact is not None:
        assert (np.isneginf(exact) == np.isneginf(scores)).all()


@run("compressor")
def compressor(lib, cases):
    inputs = [case.inputs for case in cases]
    tokens = [case["tokens"] for case in cases]
    states = {name: [lib.writable(i[name]) for i in inputs] for name in ("kv_state", "score_state")}
    out = abreast.compress(
        lib.all(i["kv"] for i in inputs),
        lib.all(i["score"] for i in inputs),
        states["kv_state"],
        states["score_state"],
        lib.of(inputs[0]["ape"]),
        lib.of(inputs[0]["norm"]),
        [case["start_pos"] for case in cases],
        ratio=cases[0]["ratio"],
        epsilon=cases[0]["eps"],
    )
    parts = np.split(lib.host(out), np.cumsum(tokens)[:-1])
    host = np.asarray if lib.immutable else lib.host
    return [(part, host(kv), host(score)) for part, kv, score in zip(parts, states["kv_state"], states["score_state"])]


def judge_compressor(case, got):
    out, kv_state, score_state = got
    want, closed = case.outputs["out_bf16"], case.get("fail_closed_at", [])
    exact, entry = case.outputs.get("emitted_out_f32"), 0
    for t in range(case["tokens"]):
        if (case["start_pos"] + t + 1) % case["ratio"]:
            assert not out[t].view(np.uint16).any()
            continue
        if t in closed:
            assert not out[t].view(np.uint16).any()
        elif case.get("mode") != "hfbf16":
            assert (out[t].view(np.uint16) != want[t].view(np.uint16)).sum() <= 2
            near(out[t], exact[entry] if exact is not None else want[t], 2**-6, 1e-5)
        entry += 1
    if case.get("mode") != "hfbf16":
        for name, state in [("kv_state", kv_state), ("score_state", score_state)]:
            if name in case.outputs:
                expected = case.outputs[name]
                equal = (state.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(state) & np.isnan(expected))
                assert equal.all()


JUDGES = {"sparse_attention": judge_attention, "indexer": judge_indexer, "compressor": judge_compressor}


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group[0].id)
def test_joint_and_alone(lib, group):
    core = group[0].core
    if any(case.get("n_keys", 1 << 30) < (case.get("pos", 0) + 1) // case.get("ratio", 1) for case in group):
        with pytest.raises(ValueError, match=r"rows\[0\].keys must be of at least"):
            RUN[core](lib, group)
        return
    joint = RUN[core](lib, group)
    for case, got in zip(group, joint):
        JUDGES[core](case, got)
        (alone,) = RUN[core](lib, [case])
        pairs = zip(alone, got) if isinstance(got, tuple) else [(alone, got)]
        assert all(same(a, b) for a, b in pairs), case.id


def test_nothing_is_left_out():
    assert {case.core for group in GROUPS for case in group} == set(RUN)
    assert sum(len(group) for group in GROUPS) >= 70
