// What every kernel starts with: bf16 by hand, the reference order, the exponential. No includes: NVRTC needs no toolkit.
// The constants in capitals come from dims.rs.

typedef unsigned short bf16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define FULL 0xffffffffu

// A grid of two dimensions in one, since a second one ends at 65,535 rows. Every kernel's last parameter is `blocks_x`.
#define BLOCK_X (blockIdx.x % blocks_x)
#define BLOCK_Y (blockIdx.x / blocks_x)
#define WARP 32

static __device__ __forceinline__ float widen(bf16 x) { return __uint_as_float((u32)x << 16); }

// To nearest even; x is finite or the caller discards the result.
static __device__ __forceinline__ bf16 narrow(float x) {
    u32 bits = __float_as_uint(x);
    return (bf16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static __device__ __forceinline__ bool finite(float x) { return fabsf(x) <= F32_MAX; }
static __device__ __forceinline__ bool finite_bits(bf16 x) { return (x & 0x7f80u) != 0x7f80u; }

// exp(x) for x <= 0; see dims.rs.
static __device__ __forceinline__ float exp_ref(float x) {
    float t = __fmaf_rn(x, EXP_LOG2_E, EXP_ROUND);
    float n = __fsub_rn(t, EXP_ROUND);
    float r = __fmaf_rn(n, -EXP_LN2_HIGH, x);
    r = __fmaf_rn(n, -EXP_LN2_LOW, r);
    float p = EXP_C0;
    p = __fmaf_rn(p, r, EXP_C1);
    p = __fmaf_rn(p, r, EXP_C2);
    p = __fmaf_rn(p, r, EXP_C3);
    p = __fmaf_rn(p, r, EXP_C4);
    p = __fmaf_rn(p, r, EXP_C5);
    p = __fmaf_rn(p, r, EXP_C6);
    float scaled = __uint_as_float(__float_as_uint(p) + (__float_as_uint(t) << 23));
    return x >= EXP_LOWEST ? scaled : 0.0f;
}

// Partial sum l is in lane l: p[l] += p[l + s] for s = 16, 8, 4, 2, 1. The sum is in lane 0.
static __device__ __forceinline__ float tree(float p) {
    for (int s = WARP / 2; s > 0; s /= 2) p = __fadd_rn(p, __shfl_down_sync(FULL, p, s));
    return p;
}

// What instructions know a place of shared memory by.
static __device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

static __device__ __forceinline__ int lane() { return threadIdx.x % WARP; }
static __device__ __forceinline__ int warp() { return threadIdx.x / WARP; }

// The sum of the lanes' values up to this one's.
static __device__ __forceinline__ u32 sum_to_lane(u32 sum) {
#pragma unroll
    for (int s = 1; s < WARP; s *= 2) {
        u32 other = __shfl_up_sync(FULL, sum, s);
        if (lane() >= s) sum += other;
    }
    return sum;
}

// Barriers in shared memory, 8 bytes each, by their addresses there.
static __device__ __forceinline__ void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
static __device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives when this thread's copies so far have landed.
static __device__ __forceinline__ void barrier_arrive_copied(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
#if __CUDA_ARCH__ >= 900
#define BARRIER_WAIT "mbarrier.try_wait"
#else
#define BARRIER_WAIT "mbarrier.test_wait"
#endif
static __device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n .reg .pred p;\n WAIT_%=:\n " BARRIER_WAIT ".parity.shared::cta.b64 p, [%0], %1;\n"
        " @!p bra WAIT_%=;\n}\n" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// Launches overlap where the chip can: a kernel waits for those before it ere it touches anything but its table, and lets the next
// start waiting. Until then it may only ask the L2 cache for what it is to read: whatever still writes that writes there.
static __device__ __forceinline__ void wait_for_predecessors() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static __device__ __forceinline__ void dependents_may_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// This block within its cluster, and the cluster's blocks: one where the chip has no clusters.
static __device__ __forceinline__ u32 cluster_rank() {
    u32 rank = 0;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}

static __device__ __forceinline__ u32 cluster_blocks() {
    u32 blocks = 1;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
#endif
    return blocks;
}
