#!/usr/bin/env python3
"""PyTorch on the CPU, over the shapes of `abreast bench`: the best of its dtypes, formulations and thread counts.

Needs torch and nothing else. Prints the JSON that `abreast bench --peers FILE` reads; see README.md.
"""

import argparse
import datetime
import json
import os
import statistics
import sys
import time

import torch
import torch.nn.functional as F

HEADS, DIM, INDEX_DIM, K, EPSILON = 64, 512, 128, 512, 1e-6
CACHE = 4  # a cache has this many times the rows that a query selects
ROWS = [1, 2, 4, 8, 16, 32]
SAMPLE = 200e-6  # a shorter call is repeated within one sample
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}  # those that --dtypes leaves


# --- operations: the ways to compute one, each a function of the first of the call's `rows` requests ---


def in_dtypes(ways):
    """The ways in every dtype, from the same random numbers."""

    def named(*shape):
        for name, dtype in DTYPES.items():
            torch.manual_seed(1)
            for way in ways(*shape, dtype):
                yield f"{name} {way.__name__}", way

    return named


@in_dtypes
def attention(rows, requests, width, dtype):
    """Selected rows of each request's own cache; the sink takes weight and gives no value."""
    scale = DIM**-0.5
    q = uniform(requests, HEADS, DIM).to(dtype)
    caches = uniform(requests, CACHE * width, DIM).to(dtype)
    flat = caches.view(-1, DIM)
    sinks = uniform(HEADS)
    index = torch.stack([torch.randperm(CACHE * width)[:width] for _ in range(requests)])
    # The same slots, numbered through all caches: one gather for all rows.
    numbered = index + torch.arange(requests)[:, None] * CACHE * width

    def with_sink(logits):
        """Softmax over the slots and the sink; the sink's column is dropped."""
        column = sinks.to(logits.dtype).view(-1, 1).expand(*logits.shape[:-1], 1)
        return torch.softmax(torch.cat([logits, column], -1), -1)[..., :-1]

    def matmuls(r):
        kv = flat.index_select(0, numbered[r : r + rows].view(-1)).view(rows, width, DIM)
        logits = torch.bmm(q[r : r + rows], kv.transpose(1, 2)).mul_(scale)
        return torch.bmm(with_sink(logits), kv)

    def matmuls_lse(r):
        """The sink as a factor: exp(lse) / (exp(lse) + exp(sink))."""
        kv = flat.index_select(0, numbered[r : r + rows].view(-1)).view(rows, width, DIM)
        logits = torch.bmm(q[r : r + rows], kv.transpose(1, 2)).mul_(scale)
        lse = torch.logsumexp(logits.float(), -1, keepdim=True)
        return torch.bmm(torch.softmax(logits, -1), kv) * torch.sigmoid(lse - sinks[:, None]).to(dtype)

    def loop(r):
        out = []
        for i in range(r, r + rows):
            kv = caches[i].index_select(0, index[i])
            out.append(with_sink((q[i] @ kv.T).mul_(scale)) @ kv)
        return out

    def sdpa(r):
        """Heads as queries of one shared key head; the flash kernel's logsumexp brings the sink in."""
        kv = flat.index_select(0, numbered[r : r + rows].view(-1)).view(rows, 1, width, DIM)
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q[r : r + rows].view(rows, 1, HEADS, DIM), kv, kv, scale=scale
        )
        return out.view(rows, HEADS, DIM) * torch.sigmoid(lse.view(rows, HEADS, 1) - sinks[:, None]).to(dtype)

    # The sink as one more key of zeros whose logit is the mask.
    mask = torch.cat([torch.zeros(HEADS, width), sinks[:, None]], -1).to(dtype)
    zero = torch.zeros(1, DIM, dtype=dtype)

    def sdpa_mask(r):
        kv = flat.index_select(0, numbered[r : r + rows].view(-1)).view(rows, 1, width, DIM)
        kv = torch.cat([kv, zero.expand(rows, 1, 1, DIM)], 2)
        query = q[r : r + rows].view(rows, 1, HEADS, DIM)
        return F.scaled_dot_product_attention(query, kv, kv, attn_mask=mask, scale=scale).view(rows, HEADS, DIM)

    return matmuls, matmuls_lse, loop, sdpa, sdpa_mask


@in_dtypes
def index_scores(rows, requests, keys, dtype):
    """relu(q k), weighted over the heads."""
    q = uniform(requests, HEADS, INDEX_DIM).to(dtype)
    weights = uniform(requests, HEADS).to(dtype)
    keys = uniform(requests, keys, INDEX_DIM).to(dtype)

    def heads_first(r):
        dots = torch.bmm(q[r : r + rows], keys[r : r + rows].transpose(1, 2)).relu_()
        return torch.bmm(weights[r : r + rows, None], dots)[:, 0]

    def keys_first(r):
        dots = torch.bmm(keys[r : r + rows], q[r : r + rows].transpose(1, 2)).relu_()
        return torch.bmm(dots, weights[r : r + rows, :, None])[..., 0]

    def loop(r):
        return torch.stack([weights[i] @ (q[i] @ keys[i].T).relu_() for i in range(r, r + rows)])

    def loop_keys_first(r):
        return torch.stack([(keys[i] @ q[i].T).relu_() @ weights[i] for i in range(r, r + rows)])

    def loop_chunks(r, chunk=1024):
        """Few enough keys at a time that their dot products stay in the caches."""
        out = torch.empty(rows, keys.shape[1], dtype=q.dtype)
        for i in range(rows):
            for start in range(0, keys.shape[1], chunk):
                part = keys[r + i, start : start + chunk]
                torch.mv((part @ q[r + i].T).relu_(), weights[r + i], out=out[i, start : start + chunk])
        return out

    return heads_first, keys_first, loop, loop_keys_first, loop_chunks


def select_keys(rows, requests, keys):
    for name, scores in index_scores(rows, requests, keys):
        yield name, lambda r, scores=scores: torch.topk(scores(r).float(), K, sorted=True)


def top_k(rows, requests, n, kind):
    scores = {
        "random": lambda: uniform(requests, n),
        "equal": lambda: torch.ones(requests, n),
        "ascending": lambda: torch.arange(n, dtype=torch.float32).repeat(requests, 1),
    }[kind]()

    def topk(r):
        return torch.topk(scores[r : r + rows], min(K, n), sorted=True)

    def loop(r):
        return [torch.topk(scores[i], min(K, n), sorted=True) for i in range(r, r + rows)]

    yield "f32 topk", topk
    yield "f32 loop", loop


def compress(rows, requests, shape):
    """One token; states and inputs are f32 in the model, so there is no other dtype to try."""
    ratio, d, layout, block = shape
    coff = 2 if ratio == 4 else 1
    window, features = coff * ratio, coff * d
    position = 9 * ratio - (1 if block else 2)
    t = position % ratio
    ape, norm = uniform(ratio, features), uniform(d)
    kv, score = uniform(requests, features), uniform(requests, features)
    kv_state, score_state = uniform(requests, window, features), uniform(requests, window, features)
    ring = layout == "ring"
    slot = position % window if ring else window - ratio + t
    zeros = torch.zeros(requests, d, dtype=torch.bfloat16)

    def pooled(states, r):
        """The window, [rows, window, d]: of overlapping blocks the one before gives its first features."""
        s = states[r : r + rows]
        if coff == 1:
            return s
        old, new = (ratio, 0) if ring and slot < ratio else (0, ratio)
        return torch.cat([s[:, old : old + ratio, :d], s[:, new : new + ratio, d:]], 1)

    def batched(r):
        part = slice(r, r + rows)
        kv_state[part, slot] = kv[part]
        score_state[part, slot] = score[part] + ape[t]
        if not block:
            return zeros[part].zero_()
        weights = torch.softmax(pooled(score_state, r), 1)
        c = (weights * pooled(kv_state, r)).sum(1).bfloat16().float()
        out = (F.rms_norm(c, (d,), norm, EPSILON)).bfloat16()
        if coff == 2 and not ring:
            kv_state[part, :ratio] = kv_state[part, ratio:]
            score_state[part, :ratio] = score_state[part, ratio:]
        return out

    yield "f32 batched", batched


def gather_rows(rows, requests, n):
    sources = [uniform(n) for _ in range(requests)]
    out = torch.empty(rows, n)

    def stack(r):
        return torch.stack(sources[r : r + rows])

    def stack_out(r):
        return torch.stack(sources[r : r + rows], out=out)

    def copies(r):
        for i in range(rows):
            out[i].copy_(sources[r + i])
        return out

    for f in (stack, stack_out, copies):
        yield f"f32 {f.__name__}", f


# --- what is measured: the names of `abreast bench`, which finds the figures by them ---

CASES = (
    [("sparse_attention", f"width {w}", attention, (w,)) for w in (128, 640, 2176)]
    + [("index_scores", f"keys {n}", index_scores, (n,)) for n in (2048, 16384, 65536)]
    + [("select_keys", "keys 16384", select_keys, (16384,))]
    + [("top_k", f"n {n} random", top_k, (n, "random")) for n in (2048, 16384, 65536, 262144)]
    + [("top_k", f"n 65536 {kind}", top_k, (65536, kind)) for kind in ("equal", "ascending")]
    + [
        ("compress", f"ratio {ratio} d {d} {layout} {token}", compress, ((ratio, d, layout, token == "block"),))
        for ratio, d in ((4, 128), (4, 512), (128, 512))
        for layout in ("shifted", "ring")
        for token in ("token", "block")
    ]
    + [("gather_rows", f"n {n}", gather_rows, (n,)) for n in (512, 65536)]
)


def most_rows(op, shape):
    """As in `abreast bench`: the largest shapes take fewer rows."""
    if (op, shape) in (("sparse_attention", "width 2176"), ("index_scores", "keys 65536")):
        return 8
    return 16 if shape == "keys 16384" else max(ROWS)


# --- how it is timed: as `abreast bench` does ---


def uniform(*shape):
    return torch.rand(*shape) * 2 - 1


def samples(call, starts, budget, fewest):
    """Seconds of a call. Every call takes the next requests, so that its data is not in the caches by accident."""
    turn, repeats, found = 0, 1, []

    def sample():
        nonlocal turn
        begin = time.perf_counter()
        for _ in range(repeats):
            call(starts[turn % len(starts)])
            turn += 1
        return (time.perf_counter() - begin) / repeats

    for _ in range(min(len(starts), 3)):
        sample()
    while sample() * repeats < SAMPLE:
        repeats *= 2
    begin = time.perf_counter()
    while time.perf_counter() - begin < budget or len(found) < fewest:
        found.append(sample())
    return found


def best(case, rows, requests, args):
    """Screens every way with 1 and with all threads, measures the best three at length, and keeps the best."""
    op, shape, make, parameters = case
    starts = list(range(0, requests - rows + 1, rows))
    torch.manual_seed(1)
    ways = list(make(rows, requests, *parameters))
    agree(op, shape, [(name, call(0)) for name, call in ways])

    def timed(budget, fewest, ways):
        found = []
        for name, call, threads in ways:
            torch.set_num_threads(threads)
            found.append((sorted(samples(call, starts, budget, fewest)), name, call, threads))
        return sorted(found, key=lambda way: statistics.median(way[0]))

    def screened(ways):
        every = [(*way, threads) for way in ways for threads in sorted({1, args.threads})]
        return [way[1:] for way in timed(args.seconds / 10, 3, every)]

    promising = screened(ways)
    if args.compile:
        names = list(dict.fromkeys(name for name, _, _ in promising))[:2]
        compiled = [(f"{name} compiled", compile_way(call, starts)) for name, call in ways if name in names]
        promising = screened(ways + compiled)
    found, name, _, threads = timed(args.seconds, 5, promising[:3])[0]
    return {
        "op": op,
        "shape": shape,
        "rows": rows,
        "median_us": statistics.median(found) * 1e6,
        "p10_us": found[(len(found) - 1) // 10] * 1e6,
        "p90_us": found[(len(found) - 1) * 9 // 10] * 1e6,
        "samples": len(found),
        "how": f"{name}, {threads} thread{'s'[: threads > 1]}",
    }


def compile_way(call, starts):
    """The first row is a dynamic integer; 0 and others are specialised apart, so both are met before timing."""
    torch._dynamo.reset()
    compiled = torch.compile(call, dynamic=True)
    for start in starts[:3]:
        compiled(start)
    return compiled


def agree(op, shape, results):
    """A way that computes something else must not win. Random inputs agree well within 5 % in the norm."""

    def tensor(x):
        if isinstance(x, torch.return_types.topk):
            return x.values.double()
        return torch.stack([tensor(y) for y in x]) if isinstance(x, list) else x.double()

    want = tensor(results[-1][1])  # an f32 way, where there is one
    for name, got in results:
        error = (tensor(got).view(want.shape) - want).norm() / want.norm().clamp(min=1e-9)
        if not error < 0.05:
            sys.exit(f"{op} {shape}: {name} is {error:.3f} off")


def machine(threads):
    cpu = "unknown"
    try:
        with open("/proc/cpuinfo") as f:
            cpu = next(line.split(":", 1)[1].strip() for line in f if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    level = torch.backends.cpu.get_cpu_capability()
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA")  # the only setting that the figures depend on
    return {
        "cpu": cpu,
        "threads": threads,
        "torch": torch.__version__,
        "vectors": level,
        "onednn_max_cpu_isa": limit,
        "date": date,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="the most threads to use")
    parser.add_argument("--op", default="", help="only operations and shapes whose name contains this")
    parser.add_argument("--rows", type=lambda s: [int(n) for n in s.split(",")], help="rows of a call, such as 1,8")
    parser.add_argument("--seconds", type=float, default=0.5, help="about how long to measure a way")
    parser.add_argument("--dtypes", default="bf16,f32", help="dtypes to choose from, where there is a choice")
    parser.add_argument("--compile", action="store_true", help="torch.compile the two best ways too; takes long")
    args = parser.parse_args()
    chosen_dtypes = args.dtypes.split(",")
    if not set(chosen_dtypes) <= set(DTYPES):
        parser.error(f"--dtypes must be among {','.join(DTYPES)}")
    for name in set(DTYPES) - set(chosen_dtypes):
        del DTYPES[name]
    torch.set_grad_enabled(False)
    results = []
    for case in CASES:
        op, shape = case[:2]
        if args.op not in f"{op} {shape}":
            continue
        default = [n for n in ROWS if n <= most_rows(op, shape)]
        for rows in args.rows or default:
            result = best(case, rows, max(default + (args.rows or [])), args)
            results.append(result)
            print(f"{op} {shape} rows {rows}: {result['median_us']:.1f} us, {result['how']}", file=sys.stderr)
    if not results:
        sys.exit(f"no operation's name contains {args.op!r}")
    name = f"torch {'+'.join(DTYPES)}"
    json.dump({"name": name, "machine": machine(args.threads), "results": results}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
