"""What a call costs the host, beside calls of PyTorch's own: microseconds until a call returns, the device being idle before.

python benches/call_overhead.py [cpu|cuda]
"""

import statistics
import sys
import time

import torch

import abreast
import abreast.torch as at

device = sys.argv[1] if len(sys.argv) > 1 else ("cuda" if torch.cuda.is_available() else "cpu")
on_gpu = device == "cuda"


def wait():
    if on_gpu:
        torch.cuda.synchronize()


def microseconds(call, calls=100, repeats=15):
    """The median of batches, few enough that no queue is full."""
    times = []
    for _ in range(repeats):
        wait()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls * 1e6)
    wait()
    return statistics.median(times)


def gpu_microseconds(call, calls=200):
    """Per call on the device, end to end."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    call(), wait()
    start.record()
    for _ in range(calls):
        call()
    end.record()
    wait()
    return start.elapsed_time(end) * 1e3 / calls


def tensors(rows, width=1):
    q = torch.randn(rows, 64, 512, device=device).bfloat16()
    kv = [torch.randn(200, 512, device=device).bfloat16() for _ in range(rows)]
    indices = [torch.arange(width, dtype=torch.int32, device=device) for _ in range(rows)]
    return q, kv, indices, torch.empty_like(q)


x = torch.zeros(16, device=device)
one, eight = tensors(1), tensors(8)
sources, gathered = [x.clone() for _ in range(8)], torch.empty(8, 16, device=device)
pool, lists = torch.cat(eight[1]), torch.zeros(8, 1, dtype=torch.int32, device=device)
offsets = list(range(0, 1800, 200))
none = [None] * 7
calls = {
    "torch.ops.aten.add.out": lambda: torch.ops.aten.add.out(x, x, out=x),
    "torch.ops.aten.stack.out, 8 rows": lambda: torch.ops.aten.stack.out(sources, out=gathered),
    "torch.nn.functional.scaled_dot_product_attention": lambda: torch.nn.functional.scaled_dot_product_attention(
        one[0][:, :, None], one[1][0][None, None], one[1][0][None, None]
    ),
    "torch.empty, 8 rows of attention": lambda: torch.empty(8, 64, 512, dtype=torch.bfloat16, device=device),
    "abreast.gather_rows, 8 rows": lambda: abreast.gather_rows(sources, out=gathered),
    "torch.ops.abreast.gather_rows, 8 rows": lambda: torch.ops.abreast.gather_rows(sources, None, gathered),
    "abreast.sparse_attention, 1 row": lambda: abreast.sparse_attention(*one[:3], out=one[3]),
    "torch.ops.abreast.sparse_attention, 1 row": lambda: torch.ops.abreast.sparse_attention(
        *one[:3], None, "invalid", *none, "reference", one[3], None
    ),
    "abreast.torch.sparse_attention, 1 row": lambda: at.sparse_attention(*one[:3], out=one[3]),
    "abreast.sparse_attention, 8 rows as lists": lambda: abreast.sparse_attention(*eight[:3], out=eight[3]),
    "abreast.sparse_attention, 8 rows as a pool": lambda: abreast.sparse_attention(eight[0], pool, lists, kv_offsets=offsets, out=eight[3]),
    "abreast.sparse_attention, 8 rows, new result": lambda: abreast.sparse_attention(*eight[:3]),
}
print(f"PyTorch {torch.__version__}, {abreast.describe('cuda:0' if on_gpu else 'cpu')}")
for name, call in calls.items():
    call()
    line = f"{name:55} {microseconds(call):7.1f} us"
    if on_gpu:
        line += f"   {gpu_microseconds(call):7.1f} us a call when many are queued"
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(50):
                call()
        line += f"   {gpu_microseconds(graph.replay, 20) / 50:7.1f} us replayed"
    print(line)
