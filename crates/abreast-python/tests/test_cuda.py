"""CUDA, by PyTorch's tensors: streams, graphs, errors. Skipped where PyTorch sees no GPU."""

import gc
import threading

import numpy as np
import pytest
from conftest import MAKE, attention, compressor, indexer, same

import abreast

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("abreast.torch")
if not torch.cuda.is_available():
    pytest.skip("PyTorch sees no GPU", allow_module_level=True)


@pytest.fixture
def lib():
    return MAKE["torch-cuda"]()


@pytest.fixture
def args(lib):
    q, kv, indices = attention()
    return lib.of(q), lib.all(kv), lib.all(indices)


def want(q, kv, indices):
    return abreast.sparse_attention(q.cpu(), [k.cpu() for k in kv], [i.cpu() for i in indices])


def test_the_bits_are_the_cpus(lib, args):
    assert torch.equal(abreast.sparse_attention(*args).cpu(), want(*args))


def test_everything_must_be_on_one_device(args):
    q, kv, indices = args
    for wrong, text in [
        ((q, kv, [i.cpu() for i in indices]), r"rows\[0\].indices must be on cuda:0, got cpu"),
        ((q.cpu(), kv, indices), r"rows\[0\].kv must be on cpu, got cuda:0"),
    ]:
        with pytest.raises(ValueError, match=text):
            abreast.sparse_attention(*wrong)
    with pytest.raises(ValueError, match="out must be on cuda:0, got cpu"):
        abreast.sparse_attention(*args, out=torch.empty(q.shape, dtype=q.dtype))
    with pytest.raises(TypeError, match="kv_lens must be on the host"):
        abreast.sparse_attention(q, kv[0], indices, kv_offsets=0, kv_lens=torch.ones(4, dtype=torch.int32, device="cuda"))
    # One number, too: it is no reason to wait.
    with pytest.raises(TypeError, match="kv_lens must be on the host"):
        abreast.sparse_attention(q[:1], kv[0], indices[:1], kv_offsets=0, kv_lens=torch.ones(1, dtype=torch.int32, device="cuda"))
    with pytest.raises(TypeError, match="must be on the host"):
        abreast.torch.sparse_attention(q[:1], kv[0], indices[:1], kv_offsets=0, kv_lens=torch.ones(1, dtype=torch.int32, device="cuda"))
    with pytest.raises(TypeError, match="stream must be the address of a CUDA stream"):
        abreast.sparse_attention(*args, stream="default")
    with pytest.raises(RuntimeError, match="cuda:99 is not available"):
        abreast.describe("cuda:99")


def busy(seconds=0.2):
    """Work that keeps the current stream from what comes next."""
    torch.cuda._sleep(int(seconds * 1.5e9))


def test_a_call_does_not_wait(args):
    import time

    abreast.sparse_attention(*args)
    torch.cuda.synchronize()
    busy(0.5)
    start = time.perf_counter()
    out = abreast.sparse_attention(*args)
    queued = time.perf_counter() - start
    busy_still = not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    assert busy_still, queued
    assert torch.equal(out.cpu(), want(*args))


def test_calls_are_in_order_with_the_current_stream(args):
    q, kv, indices = args
    new = torch.randn_like(q)
    expected = want(new, kv, indices)
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        mine = q.clone()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            busy()
            mine.copy_(new)
            out = abreast.sparse_attention(mine, kv, indices)
            copy = out.clone()
        stream.synchronize()
        assert torch.equal(copy.cpu(), expected)


def test_a_stream_by_address_waits_for_the_tensors(args):
    q, kv, indices = args
    stream = torch.cuda.Stream()
    for given in (stream, stream.cuda_stream):
        mine = q.clone()
        new = torch.randn_like(q)
        busy()
        mine.copy_(new)
        # The tensors are of the current stream: DLPack lets ours wait for it.
        out = abreast.sparse_attention(mine, kv, indices, stream=given)
        stream.synchronize()
        assert torch.equal(out.cpu(), want(new, kv, indices))
    assert abreast.release_stream(stream) is True
    assert abreast.release_stream(stream) is False


def capture(call, **options):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        result = call()
    return graph, result


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_a_graph_replays_the_bits(args, mode):
    q, kv, indices = args
    out, status = torch.empty_like(q), torch.empty(4, dtype=torch.int32, device="cuda")

    def call():
        abreast.sparse_attention(q, kv, indices, out=out, status=status)
        return abreast.sparse_attention(out, kv, indices)

    graph, second = capture(call, capture_error_mode=mode)
    data = q.clone()
    for seed in range(4):
        # Calls of other shapes in between must not change what the graph reads.
        more = attention(rows=1 + seed, seed=seed, widths=[200 + 100 * seed] * (1 + seed))
        abreast.sparse_attention(
            *(
                torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).cuda()
                if i == 0
                else [
                    torch.from_numpy(np.asarray(y).view(np.int16)).view(torch.bfloat16).cuda() if i == 1 else torch.from_numpy(y).cuda()
                    for y in x
                ]
                for i, x in enumerate(more)
            )
        )
        q.copy_(data if seed == 0 else torch.randn_like(q))
        out.fill_(9), second.fill_(9), status.fill_(9)
        graph.replay()
        torch.cuda.synchronize()
        first = want(q, kv, indices)
        assert torch.equal(out.cpu(), first)
        assert torch.equal(second.cpu(), want(first, kv, indices))
        assert not status.any()


def test_every_operation_can_be_captured(lib):
    q, kv, indices = attention()
    iq, weights, keys, start_pos = indexer()
    data = compressor()
    fresh = [data["kv_state"], data["score_state"]]

    def all_of_them(lib, states):
        return [
            abreast.sparse_attention(*inputs[lib][0]),
            abreast.index_scores(*inputs[lib][1], start_pos, ratio=4),
            abreast.select_keys(*inputs[lib][1], start_pos, ratio=4, k=512),
            abreast.top_k(inputs[lib][2], k=33),
            abreast.compress(*inputs[lib][3], *states, *inputs[lib][4], 0, ratio=4),
            *abreast.convert_state(*states, [5, 6, 7], ratio=4, from_layout="shifted", to_layout="ring"),
            abreast.gather_rows(inputs[lib][2]),
        ]

    inputs = {}
    for library in (lib, MAKE["torch"]()):
        inputs[library] = [
            (library.of(q), library.all(kv), library.all(indices)),
            (library.of(iq), library.of(weights), library.all(keys)),
            library.of(weights),
            (library.all(data["kv"]), library.all(data["score"])),
            (library.of(data["ape"]), library.of(data["norm"])),
        ]
    cpu = [library for library in inputs if library is not lib][0]
    expected = all_of_them(cpu, [cpu.all(s) for s in fresh])
    states = [lib.all(s) for s in fresh]
    start = [[t.clone() for t in s] for s in states]
    # Nothing was called before: kernels are compiled and loaded within the capture.
    graph, results = capture(lambda: all_of_them(lib, states))
    for _ in range(2):
        for s, old in zip(states, start):
            for t, o in zip(s, old):
                t.copy_(o)
        for t in results:
            t.zero_()
        graph.replay()
        torch.cuda.synchronize()
        for got, right in zip(results, expected):
            assert same(lib.host(got), cpu.host(right))


def test_graphs_give_their_memory_back(args):
    def one():
        graph, out = capture(lambda: [abreast.sparse_attention(*args) for _ in range(20)])
        graph.replay()
        torch.cuda.synchronize()
        del graph, out
        gc.collect()
        abreast.sparse_attention(*args)
        torch.cuda.synchronize()

    for _ in range(5):
        one()
    free = torch.cuda.mem_get_info()[0]
    for _ in range(40):
        one()
    assert free - torch.cuda.mem_get_info()[0] <= 32 << 20


def test_a_graph_outlives_the_handle_of_its_stream(args):
    stream = torch.cuda.Stream()
    graph, out = capture(lambda: abreast.sparse_attention(*args), stream=stream)
    assert abreast.release_stream(stream)
    gc.collect()
    abreast.sparse_attention(*args)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out.cpu(), want(*args))


def test_calls_beside_a_capture_of_another_thread(args):
    expected, stop, failed = want(*args), threading.Event(), []

    def work():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            while not stop.is_set():
                out = torch.empty_like(args[0])
                # Growing scratch, too: allocations and frees beside the capture.
                abreast.sparse_attention(*args, out=out)
                stream.synchronize()
                if not torch.equal(out.cpu(), expected):
                    failed.append("bits")

    stream = torch.cuda.Stream()
    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(10):
            graph, out = capture(lambda: abreast.sparse_attention(*args), capture_error_mode="thread_local", stream=stream)
            graph.replay()
            stream.synchronize()
            torch.cuda.synchronize()
            assert torch.equal(out.cpu(), expected)
    finally:
        stop.set()
        thread.join()
    assert not failed


def test_what_cannot_be_captured_is_refused(args):
    with pytest.raises(ValueError, match="rows\\[0\\].kv must be \\[_, 512\\]"):
        capture(lambda: abreast.sparse_attention(args[0], [k[:, :256].contiguous() for k in args[1]], args[2]))
    # The next capture works.
    graph, out = capture(lambda: abreast.sparse_attention(*args))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out.cpu(), want(*args))


def test_an_own_tensor_on_the_gpu(args):
    q, kv, indices = args
    tensor = abreast.zeros(tuple(q.shape), "bfloat16", device="cuda:0")
    busy()
    abreast.sparse_attention(q, kv, indices, out=tensor)
    theirs = torch.from_dlpack(tensor)
    assert theirs.data_ptr() == tensor.data_ptr and tensor.device == "cuda:0"
    assert torch.equal(theirs.cpu(), want(*args))


def test_memory_by_its_address(args):
    q, kv, indices = args
    raw = abreast.from_pointer(q.data_ptr(), tuple(q.shape), "bfloat16", device="cuda:0", owner=q)
    torch.cuda.synchronize()
    out = abreast.sparse_attention(raw, kv, indices)
    assert isinstance(out, abreast.Tensor)
    assert torch.equal(torch.from_dlpack(out).cpu(), want(*args))


def test_cupy(args):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    q, kv, indices = args
    scores = cupy.random.default_rng(0).standard_normal((3, 4000), dtype=cupy.float32)
    top = abreast.top_k(scores, k=64)
    assert isinstance(top, cupy.ndarray)
    assert (top.get() == abreast.top_k(scores.get(), k=64)).all()
    views = [abreast.view(cupy.from_dlpack(t.view(torch.int16)), "bfloat16") for t in (q, *kv)]
    out = abreast.sparse_attention(views[0], views[1:], [cupy.from_dlpack(i) for i in indices])
    assert torch.equal(torch.from_dlpack(out).cpu(), want(*args))
    sinks = cupy.full(64, -cupy.inf, dtype=cupy.float32)
    out = abreast.sparse_attention(q, views[1:], indices, sinks=sinks, inf_sinks="none")
    assert torch.equal(out.cpu(), want(*args))
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        again = abreast.top_k(scores, k=64)
    stream.synchronize()
    assert (again.get() == top.get()).all()


def test_a_view_works_on_its_librarys_stream(args):
    """And its result, a tensor of ours, is handed over to whoever takes it on another stream."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    q, kv, indices = args
    new = torch.randn_like(q)
    expected = want(new, kv, indices)
    side = cupy.cuda.Stream(non_blocking=True)
    views = [abreast.view(cupy.from_dlpack(t.view(torch.int16)), "bfloat16") for t in (q, *kv)]
    torch.cuda.synchronize()
    for taker in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with side:
            with torch.cuda.stream(torch.cuda.ExternalStream(side.ptr)):
                q.zero_()
                busy()
                q.copy_(new)
            result = abreast.sparse_attention(views[0], views[1:], [cupy.from_dlpack(i) for i in indices])
        assert isinstance(result, abreast.Tensor)
        with torch.cuda.stream(taker):
            copy = torch.from_dlpack(result).clone()
        taker.synchronize()
        assert torch.equal(copy.cpu(), expected)
        torch.cuda.synchronize()


def test_a_stream_that_its_library_destroyed(args):
    """CuPy's streams go with their last reference; what was kept for them must not reach for them again."""
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    expected = want(*args)
    for _ in range(20):
        stream = cupy.cuda.Stream(non_blocking=True)
        scores = cupy.random.default_rng(0).standard_normal((3, 4000), dtype=cupy.float32)
        with stream:
            kept = abreast.top_k(abreast.view(scores, "float32"), k=64)
            assert isinstance(kept, abreast.Tensor) or kept is not None
        stream.synchronize()
        del stream, scores
        gc.collect()
        # Allocations, frees and growing scratch on other streams, and the destroyed one's own memory.
        abreast.zeros((1 << 20,), device="cuda:0")
        del kept
        assert torch.equal(abreast.sparse_attention(*args).cpu(), expected)


def test_jax_on_the_gpu(args):
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    try:
        jax.devices("cuda")
    except RuntimeError as why:
        pytest.skip(f"JAX sees no GPU: {why}")
    q, kv, indices = args
    torch.cuda.synchronize()
    theirs = [jax.dlpack.from_dlpack(t) for t in (q, *kv, *indices)]
    out = abreast.sparse_attention(theirs[0], theirs[1:5], theirs[5:])
    assert isinstance(out, jax.Array)
    assert (np.asarray(out).view(np.int16) == want(*args).view(torch.int16).numpy()).all()
