// The compressor. A row is worked by a block, or by a cluster of blocks, its parts, whose first normalises and writes what all
// of them pooled. Every entry of the table holds all of its row, so that calls of several compressors are one launch.
//
// A thread has one feature and SLOTS slots of the window, and asks for all of these before it looks at any: the memory's latency
// is paid once. Where blocks overlap that is the whole window, in registers. Elsewhere a warp has 32 features, the block's warps
// have their slots in shared memory, and the first adds up what all have weighed, slot after slot. No sum is split.

#define SLOTS 8  // of a thread: the whole window where blocks overlap
#define OVERLAPPED_THREADS 512
#define PLAIN_WARPS 16
#define CHUNK (PLAIN_WARPS * SLOTS)

struct Row {
    u64 kv, score;              // f32 [tokens][features]
    u64 kv_state, score_state;  // f32 [state_rows][features]
    u64 ape;                    // f32 [ratio][features]
    u64 norm;                   // f32 [d]
    u64 out;                    // bf16 [outputs][d], from this row's first on
    u64 status;                 // u32 of this row, or 0
    u32 start, tokens, state_rows, ratio;
    int d, ring, every_token;   // d is 0 in a padding entry
    float epsilon;
};

// One token's inputs and what the state keeps of it, one feature.
struct Token {
    float kv, score;
};

static __device__ __forceinline__ Token take(const Row& row, u32 token, u32 t, int features, int g) {
    u64 at = (u64)token * features + g;
    float kv = ((const float*)row.kv)[at], score = ((const float*)row.score)[at];
    float biased = __fadd_rn(score, ((const float*)row.ape)[(u64)t * features + g]);
    bool legal = finite(kv) && finite(score) && biased == biased;
    return {finite(kv) ? kv : 0.0f, legal ? biased : F32_NAN};
}

static __device__ __forceinline__ void keep(const Row& row, u64 at, Token token) {
    ((float*)row.kv_state)[at] = token.kv;
    ((float*)row.score_state)[at] = token.score;
}

// Slots of the window that a thread has.
struct Slots {
    float kv[SLOTS], score[SLOTS];
};

// Of a score that is no number or +inf, it is no number: the feature fails closed, as it does by itself where a value is not finite.
static __device__ __forceinline__ float weigh(float score, float most) {
    return score <= F32_MAX ? exp_ref(__fsub_rn(score, most)) : F32_NAN;
}

static __device__ __forceinline__ u32 part() {
#if __CUDA_ARCH__ >= 900
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
#else
    return 0;
#endif
}

static __device__ __forceinline__ u32 parts() {
#if __CUDA_ARCH__ >= 900
    u32 count;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
    return count;
#else
    return 1;
#endif
}

static __device__ __forceinline__ void arrive_at_row() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

static __device__ __forceinline__ void wait_for_row() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// All threads of all parts are here, and what they wrote to the first part's shared memory is there.
static __device__ __forceinline__ void sync_row(bool one) {
    if (one) return __syncthreads();
    arrive_at_row();
    wait_for_row();
}

// Writes to the same place in the first part's shared memory.
static __device__ __forceinline__ void give(bf16* at, bf16 c) {
#if __CUDA_ARCH__ >= 900
    if (parts() == 1) return void(*at = c);
    u32 address = (u32)__cvta_generic_to_shared(at);
    asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %0, 0; st.shared::cluster.b16 [there], %1;}"
                 :: "r"(address), "h"(c) : "memory");
#else
    *at = c;
#endif
}

static __device__ __forceinline__ void copy_async(float* to, const float* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
                 :: "r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}

// All groups of copies but the newest `PENDING` have come.
template <int PENDING>
static __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
}

static __device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// A pooled feature; what fails closed is no number, and so the sum of squares is none.
static __device__ __forceinline__ bf16 pooled(float numerator, float denominator) {
    float c = __fdiv_rn(numerator, denominator);
    return finite(c) ? narrow(c) : (bf16)0x7fc0u;
}

// The row's entry from what all parts pooled: mean of squares, norm. Returns its faults. Every warp finds the mean by itself.
static __device__ __forceinline__ u32 normalise(const Row& row, const float* norm, const bf16* c, bf16* out) {
    float p = 0.0f;
    for (int f = lane(); f < row.d; f += WARP) p = __fmaf_rn(widen(c[f]), widen(c[f]), p);
    // The tree's sum in every lane: addition commutes.
    for (int s = WARP / 2; s > 0; s /= 2) p = __fadd_rn(p, __shfl_xor_sync(FULL, p, s));
    float mean = __fdiv_rn(p, (float)row.d);
    float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, row.epsilon)));
    bool bad = !finite(mean);
    for (int f = threadIdx.x; f < row.d; f += blockDim.x) {
        float result = __fmul_rn(__fmul_rn(widen(c[f]), r), norm[f]);
        bf16 rounded = narrow(result);
        bad |= !finite(result) || !finite_bits(rounded);
        out[f] = rounded;
    }
    if (!__syncthreads_or(bad)) return 0;
    for (int f = threadIdx.x; f < row.d; f += blockDim.x) out[f] = 0;
    return NONFINITE_STATE;
}

// Blocks of a ratio that overlap: the whole row in one block, a feature's two halves and its window in one thread, so that
// nobody waits for another's state.
static __device__ __forceinline__ void pool_overlapped(const Row& row, u32 token, bool ends, bf16* c) {
    const int ratio = SLOTS / 2, features = 2 * row.d;
    u32 position = row.start + token, t = position % ratio;
    u64 place = row.ring ? position % row.state_rows : ratio + t;
    const float* kv_state = (const float*)row.kv_state;
    const float* score_state = (const float*)row.score_state;
    for (int f = threadIdx.x; f < row.d; f += blockDim.x) {
        Slots slots;
        // What moves at the block's end in the shifted layout, beside what is pooled: the current block's first half.
        Slots moved;
        if (ends) {
            // In a ring the first block has nothing before it.
            bool first = row.ring && position < (u32)ratio;
            u32 at = row.ring && !first ? (position - (SLOTS - 1)) % row.state_rows : 0;
#pragma unroll
            for (int i = 0; i < SLOTS - 1; i++) {
                bool absent = first && i < ratio;
                u64 slot = (u64)at * features + (i < ratio ? f : row.d + f);
                slots.kv[i] = absent ? 0.0f : kv_state[slot];
                slots.score[i] = absent ? -F32_INF : score_state[slot];
                if (!absent && ++at == row.state_rows) at = 0;
            }
            if (!row.ring) {
#pragma unroll
                for (int i = 0; i < ratio - 1; i++) {
                    moved.kv[i] = kv_state[(u64)(ratio + i) * features + f];
                    moved.score[i] = score_state[(u64)(ratio + i) * features + f];
                }
            }
        }
        Token low = take(row, token, t, features, f), high = take(row, token, t, features, row.d + f);
        keep(row, place * features + f, low);
        keep(row, place * features + row.d + f, high);
        if (!ends) continue;
        slots.kv[SLOTS - 1] = high.kv;
        slots.score[SLOTS - 1] = high.score;
        if (!row.ring) {
            moved.kv[ratio - 1] = low.kv;
            moved.score[ratio - 1] = low.score;
#pragma unroll
            for (int i = 0; i < ratio; i++) {
                keep(row, (u64)i * features + f, {moved.kv[i], moved.score[i]});
                keep(row, (u64)i * features + row.d + f, {slots.kv[ratio + i], slots.score[ratio + i]});
            }
        }
        float most = -F32_INF;
#pragma unroll
        for (int i = 0; i < SLOTS; i++) most = fmaxf(most, slots.score[i]);
        float numerator = 0.0f, denominator = 0.0f;
#pragma unroll
        for (int i = 0; i < SLOTS; i++) {
            float weight = weigh(slots.score[i], most);
            denominator = __fadd_rn(denominator, weight);
            numerator = __fmaf_rn(weight, slots.kv[i], numerator);
        }
        c[f] = pooled(numerator, denominator);
    }
}

// A state's slots of a window, from `first` on, as many as the window has before its last: copied, or handed to `look`.
template <typename Look>
static __device__ __forceinline__ void each_slot(const Row& row, u64 state, u32 position, u32 first, int f, Look look) {
    u32 oldest = position + 1 - row.ratio;
    u32 place = row.ring ? (oldest + first) % row.state_rows : first;
    const float* at = (const float*)state + (u64)place * row.d + f;
#pragma unroll 4
    for (int i = 0; i < SLOTS; i++) {
        if (first + i + 1 < row.ratio) look(i, at);
        at += row.d;
        if (row.ring && ++place == row.state_rows) place = 0, at = (const float*)state + f;
    }
}

// Blocks that do not overlap: 32 features at a time, the parts in turn.
static __device__ __forceinline__ void pool_plain(const Row& row, u32 token, bool ends, bf16* c) {
    __shared__ float weights[CHUNK][WARP], values[CHUNK][WARP], mosts[PLAIN_WARPS][WARP];
    u32 position = row.start + token, t = position % row.ratio;
    u64 place = row.ring ? position % row.state_rows : t;
    u32 own = t % CHUNK, first = warp() * SLOTS;
    int l = lane();
    float (*my_weights)[WARP] = weights + first, (*my_values)[WARP] = values + first;
    for (int f = part() * WARP + l; f < row.d; f += parts() * WARP) {
        auto copy_scores = [&](u32 chunk) {
            each_slot(row, row.score_state, position, chunk + first, f,
                      [&](int i, const float* at) { copy_async(&my_weights[i][l], at); });
            end_copies();
        };
        auto copy_values = [&](u32 chunk) {
            each_slot(row, row.kv_state, position, chunk + first, f,
                      [&](int i, const float* at) { copy_async(&my_values[i][l], at); });
            end_copies();
        };
        if (ends) copy_scores(0), copy_values(0);
        // The warp whose slot the token is.
        Token brought = {0.0f, -F32_INF};
        if (warp() == own / SLOTS) {
            brought = take(row, token, t, row.d, f);
            keep(row, place * row.d + f, brought);
        }
        if (!ends) continue;
        float most = brought.score;
        for (u32 chunk = CHUNK; chunk < row.ratio; chunk += CHUNK) {
            each_slot(row, row.score_state, position, chunk + first, f,
                      [&](int, const float* at) { most = fmaxf(most, *at); });
        }
        wait_for_copies<1>();
#pragma unroll
        for (int i = 0; i < SLOTS; i++) {
            if (first + i + 1 < row.ratio) most = fmaxf(most, my_weights[i][l]);
        }
        mosts[warp()][l] = most;
        __syncthreads();
#pragma unroll
        for (int w = 0; w < PLAIN_WARPS; w++) most = fmaxf(most, mosts[w][l]);
        float numerator = 0.0f, denominator = 0.0f;
        for (u32 chunk = 0; chunk < row.ratio; chunk += CHUNK) {
            if (chunk > 0) copy_scores(chunk), copy_values(chunk);
            wait_for_copies<0>();
            u32 count = min(row.ratio - chunk, (u32)CHUNK);
            if (row.ratio - chunk <= CHUNK && warp() == own / SLOTS) {
                weights[own][l] = brought.score;
                values[own][l] = brought.kv;
            }
#pragma unroll 4
            for (int i = 0; i < SLOTS; i++) {
                if (first + i < count) my_weights[i][l] = weigh(my_weights[i][l], most);
            }
            __syncthreads();
            if (warp() == 0) {
#pragma unroll 8
                for (u32 i = 0; i < count; i++) {
                    denominator = __fadd_rn(denominator, weights[i][l]);
                    numerator = __fmaf_rn(weights[i][l], values[i][l], numerator);
                }
            }
            __syncthreads();
        }
        if (warp() == 0) give(&c[f], pooled(numerator, denominator));
    }
}

template <bool OVERLAPPED>
static __device__ __forceinline__ void compress(const Row* table, u32 r) {
    extern __shared__ float norms[];  // f32 [d], then twice bf16 [d]: what is pooled of a block and of the one before
    __shared__ Row row;
    const int words = sizeof(Row) / sizeof(u32);
    if (threadIdx.x < words) ((u32*)&row)[threadIdx.x] = ((const u32*)&table[r])[threadIdx.x];
    __syncthreads();
    bool one = parts() == 1;
    // Nobody writes to a block that has not started.
    if (!one) arrive_at_row();
    dependents_may_start();
    wait_for_predecessors();
    if (!one) wait_for_row();
    if (row.d == 0) return;
    // Asked for now, needed last.
    if (part() == 0 && row.start % row.ratio + row.tokens >= row.ratio) {
        for (int f = threadIdx.x; f < row.d; f += blockDim.x) copy_async(&norms[f], (const float*)row.norm + f);
        end_copies();
    }
    bf16* out = (bf16*)row.out;
    u32 faults = 0, blocks = 0;
    for (u32 token = 0; token < row.tokens; token++) {
        // What other threads kept of the tokens before is in the state.
        if (!OVERLAPPED && token > 0) __syncthreads();
        bool ends = (row.start + token + 1) % row.ratio == 0;
        // The first part still reads the last block's when the others pool this one.
        bf16* c = (bf16*)(norms + row.d) + blocks % 2 * row.d;
        if (OVERLAPPED) pool_overlapped(row, token, ends, c);
        else pool_plain(row, token, ends, c);
        if (ends) {
            wait_for_copies<0>();
            sync_row(one);
            if (part() == 0) faults |= normalise(row, norms, c, out);
            blocks++;
        } else if (row.every_token && part() == 0) {
            for (int f = threadIdx.x; f < row.d; f += blockDim.x) out[f] = 0;
        }
        if (ends || row.every_token) out += row.d;
    }
    if (part() == 0 && threadIdx.x == 0 && row.status) *(u32*)row.status = faults;
}

extern "C" __global__ void __launch_bounds__(OVERLAPPED_THREADS, 2) compress_overlapped(const Row* table, char*, u32 blocks_x) {
    compress<true>(table, BLOCK_Y);
}

extern "C" __global__ void __launch_bounds__(PLAIN_WARPS * WARP, 3) compress_plain(const Row* table, char*, u32 blocks_x) {
    compress<false>(table, BLOCK_Y);
}
