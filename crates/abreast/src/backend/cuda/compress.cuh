// The compressor. A row is worked by a block, or by a cluster of blocks, its parts, whose first normalises and writes what all
// of them pooled. Every entry of the table holds all of its row, so that calls of several compressors are one launch.
//
// Where blocks overlap, a thread has one feature of SLOTS slots of the window, and asks for all of these before it looks at any: the
// memory's latency is paid once. The order of a sum is that of its slots everywhere.

#define SLOTS 8  // of a thread: the whole window where blocks overlap
#define NORM_THREADS 128  // of the first part, which normalise

struct Row {
    u64 kv, score;              // f32 [tokens][features]
    u64 kv_state, score_state;  // f32 [state_rows][features]
    u64 ape;                    // f32 [ratio][features]
    u64 norm;                   // f32 [d]
    u64 out;                    // bf16 [outputs][d], from this row's first on
    u64 status;                 // u32 of this row, or 0
    u32 start, tokens, state_rows, ratio;
    u32 phase, place;           // start mod ratio, start mod state_rows
    int d, ring, every_token;   // d is 0 in a padding entry
    float epsilon;
    int pad[2];
};

// Where a token stands: its position, that within its block, and its row of a ring.
struct Place {
    u32 position, phase, row;
};

// The row of a ring `back` tokens before; the ring has more.
static __device__ __forceinline__ u32 before(const Row& row, Place at, u32 back) {
    return at.row >= back ? at.row - back : at.row + row.state_rows - back;
}

// Of an address from the table the compiler knows no space of memory: it would wait longer for a load, and take a store for one to
// shared memory.
static __device__ __forceinline__ float load(u64 at) {
    float x;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(x) : "l"(at));
    return x;
}

static __device__ __forceinline__ void store(u64 at, float x) { asm volatile("st.global.f32 [%0], %1;" :: "l"(at), "f"(x)); }
static __device__ __forceinline__ void store(u64 at, bf16 x) { asm volatile("st.global.u16 [%0], %1;" :: "l"(at), "h"(x)); }
static __device__ __forceinline__ void store(u64 at, u32 x) { asm volatile("st.global.u32 [%0], %1;" :: "l"(at), "r"(x)); }

// What the state keeps of a token, one feature.
struct Token {
    float kv, score;
};

static __device__ __forceinline__ Token token_of(float kv, float score, float ape) {
    float biased = __fadd_rn(score, ape);
    bool legal = finite(kv) && finite(score) && biased == biased;
    return {finite(kv) ? kv : 0.0f, legal ? biased : F32_NAN};
}

static __device__ __forceinline__ Token take(const Row& row, u32 token, u32 phase, u32 features, u32 f) {
    u64 at = ((u64)token * features + f) * sizeof(float);
    return token_of(load(row.kv + at), load(row.score + at), load(row.ape + ((u64)phase * features + f) * sizeof(float)));
}

static __device__ __forceinline__ void keep(const Row& row, u64 place, Token token) {
    store(row.kv_state + place * sizeof(float), token.kv);
    store(row.score_state + place * sizeof(float), token.score);
}

// The larger; no number where one is none. So the weights of a feature are all zero where a score is no number or +inf, since no
// difference to the largest is one, and their quotient is no number: it fails closed, as it does by itself where a value is not finite.
static __device__ __forceinline__ float larger(float a, float b) {
    float most;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
    return most;
}

static __device__ __forceinline__ float weigh(float score, float most) { return exp_ref(__fsub_rn(score, most)); }

// To nearest even; not finite where x is not, or beyond the range.
static __device__ __forceinline__ bf16 nearest(float x) {
    bf16 rounded;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(x));
    return rounded;
}

// A pooled feature, rounded to bf16; what fails closed is not finite, and neither is the sum of squares.
static __device__ __forceinline__ float pooled(float numerator, float denominator) {
    return widen(nearest(__fdiv_rn(numerator, denominator)));
}

static __device__ __forceinline__ u32 part() { return cluster_rank(); }
static __device__ __forceinline__ u32 parts() { return cluster_blocks(); }

// Where the parts of a row meet. Each sends what it pools into the first one's shared memory and need not wait for anybody; a
// transaction barrier there is passed when all features have come. A row of one part has neither.
struct Meeting {
    u64 barrier;

    // All parts have started, and the barrier is there.
    __device__ __forceinline__ void begin() {
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x == 0) {
            barrier_init(shared_address(&barrier), 1);
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        __syncthreads();
        asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
        asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
    }

    // The first part has done all that it did before.
    __device__ __forceinline__ void again() {
#if __CUDA_ARCH__ >= 900
        asm volatile("barrier.cluster.arrive.release;" ::: "memory");
        asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
    }

    // Writes to the same place in the first part's shared memory.
    __device__ __forceinline__ void send(float* at, float c) {
#if __CUDA_ARCH__ >= 900
        asm volatile("{.reg .b32 there, meeting; mapa.shared::cluster.u32 there, %0, 0; mapa.shared::cluster.u32 meeting, %1, 0;"
                     "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [there], %2, [meeting];}"
                     :: "r"(shared_address(at)), "r"(shared_address(&barrier)), "r"(__float_as_uint(c)) : "memory");
#endif
    }

    // In the first part: all features of its `n`th block have come.
    __device__ __forceinline__ void wait(u32 n, u32 bytes) {
#if __CUDA_ARCH__ >= 900
        u32 at = shared_address(&barrier);
        if (threadIdx.x == 0) {
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at), "r"(bytes) : "memory");
        }
        barrier_wait(at, n & 1);
#endif
    }
};

// Of 16 bytes past the first-level cache, as whole lines.
template <int BYTES>
static __device__ __forceinline__ void copy_async(float* to, u64 from) {
    if (BYTES == 16) asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" :: "r"(shared_address(to)), "l"(from));
    else asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" :: "r"(shared_address(to)), "l"(from), "n"(BYTES));
}

// All groups of copies but the newest `PENDING` have come.
template <int PENDING>
static __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
}

static __device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// True where it is true of any of the first `threads`, which all call this.
static __device__ __forceinline__ bool any_of(u32 threads, bool x) {
    u32 any;
    asm volatile("{.reg .pred p, q; setp.ne.u32 p, %2, 0; bar.red.or.pred q, 1, %1, p; selp.u32 %0, 1, 0, q;}"
                 : "=r"(any) : "r"(threads), "r"((u32)x) : "memory");
    return any;
}

// Whether a thread is one of those that normalise: the first part's first.
static __device__ __forceinline__ bool normalises() { return part() == 0 && threadIdx.x < NORM_THREADS; }
static __device__ __forceinline__ int normalisers() { return min(blockDim.x, NORM_THREADS); }

// Asked for early, needed last; each thread copies what it looks at.
static __device__ __forceinline__ void ask_for_norm(const Row& row, float* norm) {
    if (!normalises()) return;
    for (int f = threadIdx.x; f < row.d; f += normalisers()) copy_async<4>(&norm[f], row.norm + f * sizeof(float));
    end_copies();
}

// The row's entry from what all parts pooled: mean of squares, norm. Returns the row's faults.
static __device__ __forceinline__ u32 normalise(const Row& row, const float* norm, const float* c, u64 out) {
    const int many = 16;
    float p = 0.0f;
    for (int base = 0; base < row.d; base += many * WARP) {
        // d is a multiple of WARP, and the zeros beyond change no sum.
        float x[many];
#pragma unroll
        for (int i = 0; i < many; i++) x[i] = base + i * WARP < row.d ? c[base + i * WARP + lane()] : 0.0f;
#pragma unroll
        for (int i = 0; i < many; i++) p = __fmaf_rn(x[i], x[i], p);
    }
    // In every lane the sum that the tree leaves in lane 0.
    for (int s = WARP / 2; s > 0; s /= 2) p = __fadd_rn(p, __shfl_xor_sync(FULL, p, s));
    // By a power of two, a product is the quotient.
    float size = row.d;
    float mean = (row.d & (row.d - 1)) == 0 ? __fmul_rn(p, __int_as_float((254 << 23) - __float_as_int(size))) : __fdiv_rn(p, size);
    float r = __frcp_rn(__fsqrt_rn(__fadd_rn(mean, row.epsilon)));
    bool bad = !finite(mean);
    int threads = normalisers();
#pragma unroll 4
    for (int f = threadIdx.x; f < row.d; f += threads) {
        bf16 rounded = nearest(__fmul_rn(__fmul_rn(c[f], r), norm[f]));
        bad |= !finite_bits(rounded);
        store(out + f * sizeof(bf16), rounded);
    }
    if (!any_of(threads, bad)) return 0;
    for (int f = threadIdx.x; f < row.d; f += threads) store(out + f * sizeof(bf16), (bf16)0);
    return NONFINITE_STATE;
}
