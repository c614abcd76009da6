// Exact, ordered top-k on Hopper: one launch, a cluster of blocks a row (or one block), scratch none.
//
// A block owns every parts-th piece of 4 * THREADS scores of its row and reads it once; a thread keeps its scores in
// registers, or of longer rows the best of each four. What is never made is a list of the row, or a histogram of all scores:
//  1. The range of the groups' best scores over the cluster. A group is a thread's whole share, or a four, or a
//     score: the largest that leaves 2k groups.
//  2. A histogram of the groups' best, linear over that range, joined over the cluster. The bin of the k-th best gives a
//     bound: at least k scores are not below it. Of unordered data few more are.
//  3. The scores not below the bound go to block 0 as they are found; the counts follow.
//  4. More than CAP of them (many equal scores, or wild ranges): levels of histograms over the scores' bits, and where
//     one score's ties straddle the end, over their indices, until CAP are left.
//  5. Block 0 puts them in order (top_k_order.cuh).
// Short rows are candidates as they stand. A row that one block can hold alone is left to block 0 in a launch for longer ones.

// A row of up to THREADS * OWN scores: all of them are candidates as they stand.
template <int THREADS, int OWN>
static __device__ __forceinline__ void take_all(Candidate (&own)[OWN], uint2* warps, const Scores& scores, Given& all, bool& bad) {
    u32 most = 0, least = ~0u;
    float4 four[OWN / 4];
#pragma unroll
    for (u32 j = 0; j < OWN / 4; j++) {
        four[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (scores.n >= 4) four[j] = scores.fetch(4 * (j * THREADS + threadIdx.x));
    }
#pragma unroll
    for (u32 j = 0; j < OWN / 4; j++) {
        const u32 i = 4 * (j * THREADS + threadIdx.x);
        float4 x = four[j];
        scores.settle(x, i, bad);
        const float score[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            bool there = score[e] >= -F32_MAX;
            own[4 * j + e] = there ? candidate(score[e], i + e) : 0;
            u32 key = ordered(score[e]);
            most = there ? max(most, key) : most;
            least = there ? min(least, key) : least;
        }
    }
    most = __reduce_max_sync(FULL, most);
    least = __reduce_min_sync(FULL, least);
    if (lane() == 0) warps[warp()] = make_uint2(most, least);
    bad = __syncthreads_or(bad);
    all.same = most == least;
    uint2 other = lane() < THREADS / WARP ? warps[lane()] : make_uint2(0, ~0u);
    most = __reduce_max_sync(FULL, other.x);
    all.used = most ? OWN : 0;
    all.top = value_of(most);
    all.worst = value_of(__reduce_min_sync(FULL, other.y));
}

template <int C, int THREADS, int FOURS, bool KEEPS> static __device__ __forceinline__ void select_long(const Table* t, const char* scratch) {
    extern __shared__ __align__(128) char raw[];
    Shared<C, KEEPS>& s = *(Shared<C, KEEPS>*)raw;
    typedef Part<C, THREADS, FOURS, KEEPS> Part;
    dependents_may_start();
    const u32 index = blockIdx.x / C, rank = blockIdx.x % C;
    const Row row = t->row[index];
    const Output to = {(int*)t->out + row.out, row.offset, (u32)t->k};
    if (C > 1) {
        if (threadIdx.x == 0) {
            s.hop[0].start();
            s.hop[1].start();
            s.inbox_barrier.start();
            s.rest_barrier.start();
            barriers_ready();
        }
        __syncwarp();
        cluster_arrive();
    }
    s.order.template clear<THREADS>();
    if (threadIdx.x < BINS) s.histogram[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        s.found = 0;
        s.fours = 0;
    }
    const Scores scores(t, row, scratch);
    wait_for_predecessors();
    const bool alone = row.n <= CAP || (row.n <= min(ALONE, 4 * THREADS * FOURS) && to.k <= ALONE_K);
    const u32 parts = C > 1 && !alone ? C : 1;
    if (row.n < 0 || rank >= parts) return;
    Candidate own[Part::OWN];
    Given given;
    given.used = 0;
    bool bad = false;
    if (row.n <= CAP) {
        take_all<THREADS>(own, s.warps, scores, given, bad);
    } else {
        Part part = {s, scores, to.k, parts, rank};
        if (!part.find(own, given)) return;
        bad = part.bad;
    }
    if (threadIdx.x == 0) store_status(t, index, bad);
    if (given.used == 0) return to.fill(0);
    put_in_order<THREADS>(s.order, own, given, to);
}

// Launches for rows of up to 4 * THREADS scores alone.
template <int THREADS> static __device__ __forceinline__ void select_short(const Table* t, const char* scratch) {
    extern __shared__ __align__(128) char raw[];
    Order& o = *(Order*)raw;
    __shared__ uint2 warps[WARP];
    dependents_may_start();
    const Row row = t->row[blockIdx.x];
    const Output to = {(int*)t->out + row.out, row.offset, (u32)t->k};
    const Scores scores(t, row, scratch);
    o.clear<THREADS>();
    wait_for_predecessors();
    if (row.n < 0) return;
    Candidate own[4];
    Given given;
    bool bad = false;
    take_all<THREADS>(own, warps, scores, given, bad);
    if (threadIdx.x == 0) store_status(t, blockIdx.x, bad);
    if (given.used == 0) return to.fill(0);
    put_in_order<THREADS>(o, own, given, to);
}

// The kernels, with the most shared memory that they use in KiB: top_k.rs has the same numbers.
#define SHORT(name, THREADS, KIB)                                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) name(const Table* t, const char* scratch, u32) { \
        static_assert(sizeof(Order) <= KIB << 10, "shared memory");                                         \
        select_short<THREADS>(t, scratch);                                                                  \
    }
#define LONG(name, C, THREADS, FOURS, KEEPS, KIB)                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS(THREADS, C)) name(const Table* t, const char* scratch, u32) { \
        static_assert(sizeof(Shared<C, KEEPS>) <= KIB << 10, "shared memory");                              \
        select_long<C, THREADS, FOURS, KEEPS>(t, scratch);                                                  \
    }
// Two blocks a multiprocessor, so that more clusters are on the chip at once, where registers allow.
#define BLOCKS(THREADS, C) (THREADS <= 512 && C <= 8 ? 2 : 1)

SHORT(short_512, 512, 58)
LONG(kept_1x1024, 1, 1024, 4, true, 124)
LONG(kept_8x512, 8, 512, 4, true, 111)
LONG(kept_16x512, 16, 512, 8, true, 116)
LONG(read_2x1024, 2, 1024, 8, false, 93)
LONG(read_4x512, 4, 512, 8, false, 94)
LONG(read_8x1024, 8, 1024, 8, false, 96)
LONG(read_16x512, 16, 512, 8, false, 100)
