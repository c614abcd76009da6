// The second look at a row in which something was not finite: slow, exact, seldom.

// The named barrier of the threads that look again.
#define LOOK 2

template <int THREADS> static __device__ bool cache_is_bad(const Row* row, int thread) {
    const int* indices = (const int*)row->indices;
    bool bad = false;
    for (int j = thread / WARP; j < row->width; j += THREADS / WARP) {
        if (indices[j] == NO_INDEX) continue;
        const bf16* kv = (const bf16*)row->kv + (u64)indices[j] * DIM;
        for (int f = lane(); f < DIM; f += WARP) bad |= !finite_bits(kv[f]);
    }
    return any_of_some<LOOK, THREADS>(bad);
}

template <int THREADS> static __device__ u32 input_faults(const Table* t, const Row* row, int head, int thread) {
    const bf16* q = (const bf16*)t->q + (row->query * t->heads + head) * (u64)DIM;
    bool bad = false;
    for (int f = thread; f < DIM; f += THREADS) bad |= !finite_bits(q[f]);
    u32 faults = any_of_some<LOOK, THREADS>(bad) ? NONFINITE_QUERY : 0;
    if (t->sinks && !finite(((const float*)t->sinks)[head])) faults |= NONFINITE_SINK;
    return faults;
}

// A warp's dot product; in lane 0.
static __device__ float logit_again(const Table* t, const bf16* q, const bf16* kv) {
    float p = 0.0f;
    for (int f = lane(); f < DIM; f += WARP) p = __fmaf_rn(widen(q[f]), widen(kv[f]), p);
    return __fmul_rn(tree(p), t->scale);
}

// A head with finite inputs whose chain was not finite, in plain f32: its largest logit first, so that only what must overflow does.
// True where it does.
template <int THREADS> static __device__ bool head_again(const Table* t, const Row* row, int head, int thread, float* scratch) {
    const int* indices = (const int*)row->indices;
    const bf16 *q = (const bf16*)t->q + (row->query * t->heads + head) * (u64)DIM, *kv = (const bf16*)row->kv;
    const int w = thread / WARP;
    float sink = t->sinks ? ((const float*)t->sinks)[head] : -F32_INF, most = sink;
    bool bad = false;
    for (int j = w; j < row->width; j += THREADS / WARP) {
        if (indices[j] == NO_INDEX) continue;
        float x = __shfl_sync(FULL, logit_again(t, q, kv + (u64)indices[j] * DIM), 0);
        bad |= !finite(x);
        most = fmaxf(most, x);
    }
    if (any_of_some<LOOK, THREADS>(bad)) return true;
    if (lane() == 0) scratch[w] = most;
    sync_some<LOOK, THREADS>();
    for (int i = 0; i < THREADS / WARP; i++) most = fmaxf(most, scratch[i]);
    float sum = t->sinks ? exp_ref(__fsub_rn(sink, most)) : 0.0f, value[DIM / THREADS] = {};
    for (int first = 0; first < row->width; first += THREADS) {
        sync_some<LOOK, THREADS>();
        int count = min(THREADS, row->width - first);
        for (int j = w; j < count; j += THREADS / WARP) {
            int index = indices[first + j];
            float x = index == NO_INDEX ? -F32_INF : logit_again(t, q, kv + (u64)index * DIM);
            if (lane() == 0) scratch[j] = exp_ref(__fsub_rn(x, most));
        }
        sync_some<LOOK, THREADS>();
        for (int j = 0; j < count; j++) {
            int index = indices[first + j];
            if (index == NO_INDEX) continue;
            sum = __fadd_rn(sum, scratch[j]);
            for (int i = 0; i < DIM / THREADS; i++)
                value[i] = __fmaf_rn(scratch[j], widen(kv[(u64)index * DIM + thread + i * THREADS]), value[i]);
        }
    }
    bf16* out = (bf16*)t->out + (row->out * t->heads + head) * (u64)DIM;
    for (int i = 0; i < DIM / THREADS; i++) {
        float v = __fdiv_rn(value[i], sum);
        bad |= !finite(v) || !finite_bits(narrow(v));
        out[thread + i * THREADS] = narrow(v);
    }
    sync_some<LOOK, THREADS>();
    return any_of_some<LOOK, THREADS>(bad);
}

// What is wrong with a row, as a group of heads of which something is suspect sees it; makes zero what fails closed.
template <int THREADS> static __device__ u32 look_again(const Task& b, int thread, float* scratch) {
    const Table* t = b.t;
    const Row* row = b.row;
    const Flags* flags = b.flags;
    u32 faults = 0;
    bool all = true;
    if (flags->invalid) faults = INVALID_INDEX;
    else if (cache_is_bad<THREADS>(row, thread)) faults = NONFINITE_KV;
    else all = false;
    for (int h = 0; h < b.heads; h++) {
        const int head = b.head + h;
        bool zero = all;
        if (!flags->invalid && (all || flags->suspect[head / 32] >> head % 32 & 1)) {
            u32 found = input_faults<THREADS>(t, row, head, thread);
            if (!all && !found && head_again<THREADS>(t, row, head, thread, scratch)) found = OVERFLOW;
            zero |= found != 0;
            faults |= found;
        }
        if (zero)
            for (int f = thread; f < DIM; f += THREADS) b.out[h * DIM + f] = 0;
    }
    return faults;
}

// Tells every block of the group which of two heads are suspect: bits of `which`.
static __device__ __forceinline__ void suspects(const Task& b, u32 which, const int (&h)[2]) {
    for (int side = 0; side < 2; side++) {
        const int head = b.head + h[side];
        const u32 at = shared_address(&b.flags->suspect[head / 32]);
        for (u32 i = 0; which >> side & 1 && i < cluster_blocks(); i++) or_there(in_block(at, i), 1u << head % 32);
    }
    cluster_release();
}

// How the row went, said by whichever of its groups of heads ends last. The row's entry is `active`, 1; above that are bits of the faults so far, and
// above these a bit a group that has ended.
#define FAULT_BITS 8
static __device__ __forceinline__ void say(const Task& b, u32 faults) {
    if (b.parts > 1) {
        u32* told = (u32*)&b.row->active;
        const u32 mine = 1u << (FAULT_BITS + b.part) | faults << 1, all = atomicOr(told, mine) | mine;
        if (all >> FAULT_BITS != (1u << b.parts) - 1) return;
        *told = 1;
        faults = all % (1u << FAULT_BITS) >> 1;
    }
    if (b.t->status) ((u32*)b.t->status)[b.row - b.t->row] = faults;
}

// The end of a group of heads, by THREADS of its first block when all have written: they look again where something was suspect.
template <int THREADS, int FIRST> static __device__ __forceinline__ void conclude(const Task& b, float* scratch) {
    const int thread = threadIdx.x - FIRST;
    const u32 faults = b.suspicious() ? look_again<THREADS>(b, thread, scratch) : 0;
    if (thread == 0) say(b, faults);
}
