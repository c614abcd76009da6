// Exact, ordered top-k on Hopper: one launch, a cluster of blocks a row (or one block), scratch none.
//
// The warps of a row's blocks take turns in it, 128 scores at a time, and read it once; a thread keeps its scores in registers,
// or of longer rows the best of each four. What is never made is a list of the row, or a histogram of all its scores:
//  1. Each block by itself: the range of its groups' best scores, a histogram of them, linear over that range, and from it a
//     bound which its part of the k best groups reaches, and few more. A group is a thread's whole share, or a four, or a
//     score: the largest of which there are 2k. Where many are in one bin (wild ranges, equal scores), finer ones follow, by
//     the scores' bits and then by the index: a bound is a score and an index.
//  2. The lowest of the blocks' bounds: at least k scores reach it. Of data that does not know the blocks few more do.
//  3. The scores that reach it go to block 0 as they are found; the counts follow.
//  4. More than CAP of them: a bound of the scores themselves, from the blocks' histograms joined.
//  5. Block 0 puts them in order (top_k_order.cuh).
// Short rows are candidates as they stand. A row that one block can hold alone is left to block 0 in a launch for longer ones.
//
// The next launch may start when this one may work, no earlier: else launches whose turn is far off pile up and take places. But behind
// scores of its own, a launch of few blocks lets the next start at once, to be ready when this one ends.

static __device__ __forceinline__ bool next_at_once(const Table* t) { return t->in_scratch && gridDim.x <= FEW; }

// A row of up to THREADS * OWN scores: all of them are candidates as they stand.
template <int THREADS, int OWN>
static __device__ __forceinline__ void take_all(Candidate (&own)[OWN], float2* warps, const Scores& scores, Given& all, bool& bad) {
    float best = -F32_INF, worst = F32_INF;
    float4 four[OWN / 4];
    if (scores.n >= 4) {
        scores.fetch(four, [](u32 j) { return 4 * (j * THREADS + threadIdx.x); });
    } else {
#pragma unroll
        for (u32 j = 0; j < OWN / 4; j++) four[j] = scores.rest();
    }
#pragma unroll
    for (u32 j = 0; j < OWN / 4; j++) {
        const u32 i = 4 * (j * THREADS + threadIdx.x);
        float4 x = four[j];
        scores.settle(x, i, bad);
        const float score[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            const bool there = score[e] >= -F32_MAX;
            own[4 * j + e] = there ? candidate(score[e], i + e) : 0;
            best = fmaxf(best, score[e]);
            worst = fminf(worst, there ? score[e] : F32_INF);
        }
    }
    ends_of_warp(best, worst);
    if (lane() == 0) warps[warp()] = make_float2(best, worst);
    bad = __syncthreads_or(bad);
    const float2 other = lane() < THREADS / WARP ? warps[lane()] : make_float2(-F32_INF, F32_INF);
    all.top = other.x, all.worst = other.y;
    ends_of_warp(all.top, all.worst);
    all.used = all.top >= -F32_MAX ? OWN : 0;
    all.last = all.top == all.worst ? scores.n - 1 : ~0u;
}

template <int THREADS, int FOURS, Hold HOLD, bool CLUSTER> static __device__ __forceinline__ void select_long(const Table* t, const char* scratch) {
    extern __shared__ __align__(128) char raw[];
    Shared& s = *(Shared*)raw;
    typedef Part<THREADS, FOURS, HOLD> Part;
    const u32 blocks = CLUSTER ? cluster_blocks() : 1, rank = CLUSTER ? cluster_rank() : 0, index = CLUSTER ? cluster_index() : blockIdx.x;
    const Row row = t->row[index];
    const bool padding = row.n < 0;
    const u32 k = t->k;
    if (CLUSTER) {
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
    s.order.start<THREADS>();
    if (threadIdx.x < BINS) s.histogram[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        s.found = 0;
        s.fours = 0;
        // Kept there until the end: registers are few.
        s.to = {(int*)t->out + row.out, row.offset, k};
        s.status = Status(t, index);
    }
    const Scores scores(t, row, scratch);
    if (next_at_once(t)) dependents_may_start();
    wait_for_predecessors();
    dependents_may_start();
    const bool alone = scores.n <= CAP || (scores.n <= min(ALONE, 4 * THREADS * FOURS) && k <= ALONE_K);
    const u32 bits = CLUSTER && !alone ? 31 - __clz(blocks) : 0;
    if (padding || rank >> bits) return;
    Candidate own[Part::OWN];
    Given given;
    given.used = 0;
    bool bad = false;
    if (scores.n <= CAP) {
        take_all<THREADS>(own, s.ends, scores, given, bad);
    } else {
        Part part = {{s, bits, rank}, scores};
        if (!part.find(own, given, k)) return;
        bad = part.bad;
    }
    s.status.store(bad);
    const Output to = s.to;
    if (given.used == 0) return to.fill(0);
    put_in_order<THREADS>(s.order, own, given, to);
}

// Launches for rows of up to 4 * THREADS scores alone.
template <int THREADS> static __device__ __forceinline__ void select_short(const Table* t, const char* scratch) {
    extern __shared__ __align__(128) char raw[];
    Order& o = *(Order*)raw;
    __shared__ float2 warps[WARP];
    const Row row = t->row[blockIdx.x];
    const Output to = {(int*)t->out + row.out, row.offset, (u32)t->k};
    const Status status(t, blockIdx.x);
    const Scores scores(t, row, scratch);
    o.start<THREADS>();
    if (next_at_once(t)) dependents_may_start();
    wait_for_predecessors();
    dependents_may_start();
    if (row.n < 0) return;
    Candidate own[2048 / THREADS];
    Given given;
    bool bad = false;
    take_all<THREADS>(own, warps, scores, given, bad);
    if (given.used == 0) {
        to.fill(0);
    } else {
        given.used = 2048 / THREADS;  // which the compiler knows now
        put_in_order<THREADS>(o, own, given, to);
    }
    status.store(bad);
}

// The kernels, with the most shared memory that they use in KiB: top_k.rs has the same numbers.
#define SHORT(name, THREADS, KIB)                                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) name(const Table* t, const char* scratch, u32) { \
        static_assert(sizeof(Order) <= KIB << 10, "shared memory");                                         \
        select_short<THREADS>(t, scratch);                                                                  \
    }
#define LONG(name, THREADS, FOURS, HOLD, CLUSTER, KIB)                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) name(const Table* t, const char* scratch, u32) { \
        static_assert(sizeof(Shared) + (HOLD == HELD ? THREADS * FOURS * 16 - CAP * 4 : 0) <= KIB << 10, "shared memory"); \
        select_long<THREADS, FOURS, HOLD, CLUSTER>(t, scratch);                                             \
    }

SHORT(short_512, 512, 66)
LONG(kept_1024, 1024, 4, KEPT, false, 106)
LONG(kept_512_few, 512, 2, KEPT, true, 106)
LONG(kept_512, 512, 4, KEPT, true, 106)
LONG(kept_512_more, 512, 8, KEPT, true, 106)
LONG(held_1024, 1024, 8, HELD, true, 218)
LONG(read_1024, 1024, 8, READ, true, 106)
