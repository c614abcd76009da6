"""PyTorch: custom operators, torch.compile, and what only its tensors have. Skipped where it is not installed."""

import gc
import shutil
import weakref

import numpy as np
import pytest
from conftest import Torch, attention, compressor, indexer, same

import abreast

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
at = pytest.importorskip("abreast.torch")


@pytest.fixture(params=["cpu", "cuda"])
def lib(request):
    return Torch(request.param, request.param)


BACKENDS = ["aot_eager"]
if shutil.which("g++"):
    BACKENDS.append("inductor")


def cases(lib):
    """Every operation with two forms of rows: name, arguments, named arguments."""
    q, kv, indices = attention()
    yield "sparse_attention", (lib.of(q), lib.all(kv), lib.all(indices)), {}
    padded = np.stack([np.resize(i, 30) for i in indices])
    lens = [len(k) for k in kv]
    pool = lib.of(np.concatenate(kv))
    numbers = dict(kv_offsets=np.cumsum([0, *lens[:-1]]).tolist(), kv_lens=lens, indices_lens=[20, 0, 30, 7])
    yield "sparse_attention", (lib.of(q), pool, lib.of(padded)), dict(sinks=lib.of(np.zeros(64, np.float32)), **numbers)
    yield "sparse_attention", (lib.of(q), lib.all(kv[:2]), lib.all(indices[:2])), dict(query_rows=[3, 0], out_rows=[1, 0])
    q, weights, keys, start_pos = indexer()
    args = (lib.of(q), lib.of(weights), lib.all(keys), start_pos)
    yield "index_scores", args, dict(ratio=4)
    yield "select_keys", args, dict(ratio=4, k=16, offset=7)
    yield "top_k", (lib.of(np.random.default_rng(0).standard_normal((3, 99)).astype(np.float32)),), dict(k=9, scores_lens=[99, 5, 0])
    yield "gather_rows", (lib.all(weights),), {}
    yield "gather_rows", (lib.of(weights),), dict(offsets=[3, 3, 1])
    for emit in ("every_token", "blocks"):
        data = compressor()
        tensors = [lib.all(data[n]) for n in ("kv", "score", "kv_state", "score_state")]
        yield "compress", (*tensors, lib.of(data["ape"]), lib.of(data["norm"]), [0, 0, 0]), dict(ratio=4, emit=emit)
    states = [lib.all(compressor(seed=2)[n]) for n in ("kv_state", "score_state")]
    yield "convert_state", (*states, [4, 9, 2]), dict(ratio=4, from_layout="shifted", to_layout="ring", to_rows=11)


def clones(value):
    if isinstance(value, (list, tuple)):
        return [clones(v) for v in value]
    return value.clone() if isinstance(value, torch.Tensor) else value


def tensors(value):
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors(v)]
    return [value] if isinstance(value, torch.Tensor) else []


def equal(lib, a, b):
    return len(a) == len(b) and all(same(lib.host(x), lib.host(y)) for x, y in zip(a, b))


def test_the_operators_are_the_functions(lib):
    for name, args, named in cases(lib):
        here, there = clones(args), clones(args)
        want = getattr(abreast, name)(*here, **named)
        got = getattr(at, name)(*there, **named)
        assert equal(lib, tensors(got), tensors(want)), (name, named)
        assert equal(lib, tensors(here), tensors(there)), (name, "states")


@pytest.mark.parametrize("backend", BACKENDS)
def test_they_compile_as_one_graph(lib, backend):
    chosen = list(cases(lib))
    if backend == "inductor":
        # It takes seconds a case: one that only reads, one with numbers of rows, one that writes states.
        chosen = [chosen[i] for i in (0, 4, 8)]
    for name, args, named in chosen:
        torch._dynamo.reset()
        plain, traced = clones(args), clones(args)
        function = getattr(at, name)

        def step(*args, function=function, named=named):
            result = function(*args, **named)
            # Something to fuse with, on both sides.
            return result, [t.float().abs() + 1 for t in tensors(result)]

        want = step(*plain)
        got = torch.compile(step, fullgraph=True, backend=backend)(*traced)
        assert equal(lib, tensors(got), tensors(want)), (name, named)
        assert equal(lib, tensors(plain), tensors(traced)), (name, "states")


def test_pytorch_checks_the_operators(lib):
    q, kv, indices = attention()
    none = [None] * 7
    args = (lib.of(q), lib.all(kv), lib.all(indices), None, "invalid", 0.04, *none[:6], "reference", lib.of(q), None)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.abreast.sparse_attention.default, args, test_utils=checks)
    scores = lib.of(np.ones((3, 50), np.float32))
    out = torch.empty(3, 8, dtype=torch.int32, device=lib.device)
    torch.library.opcheck(torch.ops.abreast.top_k.default, ([scores], 8, [0, 0, 0], None, None, None, out, None), test_utils=checks)
    data = compressor()
    parts = [lib.all(data[n]) for n in ("kv", "score", "kv_state", "score_state")]
    out = torch.empty(18, 128, dtype=torch.bfloat16, device=lib.device)
    args = (*parts, lib.of(data["ape"]), lib.of(data["norm"]), [0, 0, 0], 4, 1e-6, "shifted", "every_token", *none[:5], out, None)
    torch.library.opcheck(torch.ops.abreast.compress.default, args, test_utils=checks)


def test_the_schemas_declare_what_is_written():
    written = {
        name: {a.name for a in getattr(torch.ops.abreast, name).default._schema.arguments if a.alias_info and a.alias_info.is_write}
        for name in ("sparse_attention", "index_scores", "top_k", "select_keys", "compress", "convert_state", "gather_rows")
    }
    assert written["compress"] == {"kv_state", "score_state", "out", "status"}
    assert written["convert_state"] == {"out_kv", "out_score"}
    assert written["gather_rows"] == {"out"}
    assert all(written[n] == {"out", "status"} for n in ("sparse_attention", "index_scores", "top_k", "select_keys"))


def test_an_error_within_an_operator_keeps_its_text(lib):
    q, kv, indices = attention()
    with pytest.raises(ValueError, match="sparse_attention: rows\\[1\\].kv must be"):
        at.sparse_attention(lib.of(q), [lib.of(k[:, :256].copy()) if r == 1 else lib.of(k) for r, k in enumerate(kv)], lib.all(indices))


def test_gradients_are_refused_and_not_forgotten(lib):
    q, kv, indices = attention()
    args = (lib.of(q), lib.all(kv), lib.all(indices))
    sinks = torch.nn.Parameter(torch.zeros(64, device=lib.device))
    with pytest.raises(ValueError, match="sinks must be a tensor without gradient"):
        abreast.sparse_attention(*args, sinks=sinks)
    with torch.no_grad():
        got = abreast.sparse_attention(*args, sinks=sinks)
    assert same(lib.host(got), lib.host(abreast.sparse_attention(*args, sinks=sinks.detach())))
    args[0].requires_grad_()
    with pytest.raises(ValueError, match="q must be a tensor without gradient"):
        abreast.sparse_attention(*args)
    with pytest.raises(ValueError, match="out must be a tensor without gradient"):
        abreast.sparse_attention(args[0].detach(), *args[1:], out=torch.empty_like(args[0], requires_grad=True))
    with torch.inference_mode():
        assert not abreast.sparse_attention(*args).requires_grad


def test_tensors_that_are_no_plain_memory(lib):
    scores = lib.of(np.arange(12, dtype=np.float32).reshape(3, 4))
    for odd in (scores.to_sparse(), torch.quantize_per_tensor(scores.cpu(), 0.1, 0, torch.quint8), scores.to("meta")):
        with pytest.raises((ValueError, TypeError, RuntimeError, BufferError)):
            abreast.top_k(odd, k=2)
    negated = torch._neg_view(scores)
    with pytest.raises(ValueError, match="scores must be a tensor whose values are in memory"):
        abreast.top_k(negated, k=2)


def test_subclasses(lib):
    class Named(torch.Tensor):
        pass

    scores = lib.of(np.arange(12, dtype=np.float32).reshape(3, 4))
    assert lib.host(abreast.top_k(scores.as_subclass(Named), k=1)).tolist() == [[3]] * 3


def test_nothing_is_kept(lib):
    q, kv, indices = attention()
    args = (lib.of(q), lib.all(kv), lib.all(indices))
    seen = [weakref.ref(t) for t in tensors(args)]
    out = abreast.sparse_attention(*args)
    at.sparse_attention(*args, out=out)
    del args
    gc.collect()
    assert all(r() is None for r in seen)


def test_pinned_memory_is_the_hosts(cuda):
    scores = cuda.randn(3, 50).pin_memory()
    assert abreast.top_k(scores, k=4).device.type == "cpu"


def test_tensors_without_memory_are_refused():
    """A storage that was freed (as sharded training does), zeros that are only said, and the tensors of compilers."""
    scores = torch.arange(12.0).reshape(3, 4)
    freed = scores.clone()
    freed.untyped_storage().resize_(0)
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.zeros(3, 4)
    for odd in (freed, torch._efficientzerotensor((3, 4)), fake, torch._to_functional_tensor(scores)):
        with pytest.raises((ValueError, RuntimeError), match="values are in memory|data pointer"):
            abreast.top_k(odd, k=2)
        with pytest.raises((ValueError, RuntimeError)):
            abreast.top_k([scores[0], odd[0]], k=2)
    with pytest.raises(RuntimeError):
        torch.vmap(lambda row: abreast.top_k(row, k=2))(scores)


def test_operators_take_what_the_functions_take():
    scores = torch.arange(12.0).reshape(3, 4)
    for module in (abreast, at):
        for offset in (np.int64(3), np.array([3, 3, 3]), torch.tensor([3, 3, 3]), (3, 3, 3), 3):
            assert torch.equal(module.top_k(scores, k=2, offset=offset), torch.tensor([[6, 5]] * 3, dtype=torch.int32))
        assert tuple(module.top_k(scores, k=2, scores_lens=np.int64(1)).shape) == (3, 2)
        for k, text in [(-1, "k must be a count, got -1"), (2**62, "k must be 1 to 2048")]:
            with pytest.raises(ValueError, match=text):
                module.top_k(scores, k=k)
        for call in (lambda: module.top_k([], k=2), lambda: module.gather_rows([])):
            with pytest.raises(ValueError, match="must be of at least one row, or out given"):
                call()


def test_operators_refuse_what_the_functions_refuse(lib):
    q, kv, indices = attention()
    args = (lib.of(q), lib.all(kv), lib.all(indices))
    states = [torch.zeros(3, 8, 256, device=lib.device) for _ in range(3)]
    numbers = dict(ratio=4, from_layout="ring", to_layout="shifted")
    data = compressor()
    tensors = [lib.all(data[n]) for n in ("kv", "score", "kv_state", "score_state")]
    shared = (lib.of(data["ape"]), lib.of(data["norm"]), [0, 0, 0])
    for module in (abreast, at):
        for text, call in [
            ("kv must be a list of 4 rows, got 1", lambda: module.sparse_attention(args[0], args[1][:1], args[2])),
            ("indices must be a list of 4 rows, got 1", lambda: module.sparse_attention(args[0], args[1], args[2][:1])),
            ("out must be below 4, got 5", lambda: module.sparse_attention(*args, out_rows=[5, 0, 1, 2])),
            ("out_kv must be given together", lambda: module.convert_state(*states[:2], [1, 2, 3], out_kv=states[2], **numbers)),
            ("out_kv must be given together", lambda: module.convert_state(*states[:2], [1, 2, 3], out_score=states[2], **numbers)),
            ("score_state must be a list of 3 rows, got 1", lambda: module.compress(*tensors[:3], tensors[3][:1], *shared, ratio=4)),
            ("out_rows must be None where out is", lambda: module.compress(*tensors, *shared, ratio=4, out_rows=[0, 5, 11])),
        ]:
            with pytest.raises(ValueError, match=text):
                call()


def test_gradients_are_refused_in_every_way(lib):
    """Where sinks are translated, and where it is compiled."""
    q, kv, indices = attention()
    args = (lib.of(q), lib.all(kv), lib.all(indices))
    sinks = torch.zeros(64, device=lib.device, requires_grad=True)
    for module in (abreast, at):
        with pytest.raises(ValueError, match="sinks must be a tensor without gradient"):
            module.sparse_attention(*args, sinks=sinks, inf_sinks="none")
        with torch.no_grad():
            assert not module.sparse_attention(*args, sinks=sinks, inf_sinks="none").requires_grad
    torch._dynamo.reset()
    step = torch.compile(lambda sinks: at.sparse_attention(*args, sinks=sinks), backend="aot_eager")
    with pytest.raises((ValueError, RuntimeError), match="without gradient|Observed exception"):
        step(sinks)
    assert same(lib.host(step(sinks.detach())), lib.host(abreast.sparse_attention(*args, sinks=sinks.detach())))


def test_autograd_sees_what_an_operator_writes(lib):
    """Something kept for a gradient and written since would give a wrong one."""
    q, kv, indices = attention()
    args = (lib.of(q), lib.all(kv), lib.all(indices))
    out = at.sparse_attention(*args)
    weight = torch.ones_like(out, requires_grad=True)
    loss = (out * weight).sum()
    at.sparse_attention(*args, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():
        at.sparse_attention(*args, out=torch.empty_like(out))


def test_shapes_and_numbers_may_change_in_a_compiled_call():
    torch._dynamo.reset()
    step = torch.compile(lambda scores, k, lens: at.top_k(scores, k=k, scores_lens=lens), dynamic=True, backend="aot_eager")
    for rows, k in ((1, 2), (2, 2), (5, 3), (2, 1), (1, 4)):
        scores = torch.randn(rows, 6 + rows)
        assert torch.equal(step(scores, k, 5), abreast.top_k(scores, k=k, scores_lens=5))
