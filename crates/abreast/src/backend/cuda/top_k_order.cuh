// The last stage of top_k_hopper.cu: one block puts at most CAP candidates in order and writes the k best.
//
// A counting sort: bins linear in value, prefix sums, each candidate to its bin's place, then its rank among the few of its
// bin. Where a bin is crowded, a second round splits it into as many bins as it has members: by index where all its scores
// are equal, else by value. What is crowded even then (values of wild ranges, indices in heaps) is sorted by comparison. The
// order is total: which way a row takes moves time, never the answer.

#define CAP 4096    // most candidates
#define FINE 2048   // bins of the counting sort
#define CROWDED 64  // more members of a bin are not ranked one by one
#define MIXED 0x8000u

// A score and its index in one number, larger for the better: first the score, then the smaller index. None is 0.
typedef u64 Candidate;

// Larger for the better finite score, never 0. Adding 0 makes one zero of the two.
static __device__ __forceinline__ u32 ordered(float score) {
    u32 bits = __float_as_uint(__fadd_rn(score, 0.0f));
    return bits ^ ((u32)((int)bits >> 31) | 0x80000000u);
}
static __device__ __forceinline__ float value_of(u32 key) {
    return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}
static __device__ __forceinline__ Candidate candidate(float score, u32 index) { return (u64)ordered(score) << 32 | ~index; }
static __device__ __forceinline__ float score_of(Candidate c) { return value_of((u32)(c >> 32)); }
static __device__ __forceinline__ u32 index_of(Candidate c) { return ~(u32)c; }

// Where a score lies between the best and the worst, in bins: monotone whatever the rounding. Halves keep the difference of
// two scores from overflowing.
struct Linear {
    float half_best, scale;
    u32 last;

    __device__ __forceinline__ Linear(float best, float worst, u32 bins) : half_best(0.5f * best), last(bins - 1) {
        float distance = fmaf(-0.5f, worst, half_best);
        scale = distance > 0.0f ? fminf((float)last / distance, F32_MAX) : F32_MAX;
    }
    __device__ __forceinline__ float place(float score) const { return fmaf(-0.5f, score, half_best) * scale; }
    __device__ __forceinline__ u32 bin(float score) const { return min(last, (u32)place(score)); }
};

// Where a row's indices go.
struct Output {
    int* out;
    int offset;
    u32 k;

    __device__ __forceinline__ void fill(u32 from) const {
        for (u32 i = from + threadIdx.x; i < k; i += blockDim.x) out[i] = NO_INDEX;
    }
};

struct Order {
    union {
        Candidate sorted[CAP];
        Candidate list[CAP];  // before: where candidates are collected
    };
    union {
        u32 span[CAP];  // of each place in `sorted`: its bin's start << 16 | members
        u32 work[CAP];  // before: fours that hold candidates
    };
    alignas(16) u32 fine[FINE];  // zero before the last stage; members, then start << 16 | members
    u32 warps[WARP];
    u32 low, high;   // indices of crowded bins
    u32 valid, end;  // candidates; where the last bin ends that holds one of the k best

    template <int THREADS> __device__ __forceinline__ void clear() {
        for (u32 i = threadIdx.x; i < FINE / 4; i += THREADS) ((uint4*)fine)[i] = make_uint4(0, 0, 0, 0);
        if (threadIdx.x == 0) low = ~0u, high = 0;
    }
};

// Members of every bin to start << 16 | members; whether a bin that matters is crowded. Ends with a barrier.
template <int THREADS> static __device__ __forceinline__ bool starts(Order& o, u32 k) {
    constexpr int OWN = FINE / THREADS;
    struct alignas(4 * OWN) Own {
        u32 bin[OWN];
    };
    Own own = ((Own*)o.fine)[threadIdx.x];
    u32 sum = 0;
#pragma unroll
    for (int i = 0; i < OWN; i++) sum += own.bin[i];
    u32 upto = sum;
#pragma unroll
    for (int s = 1; s < WARP; s *= 2) {
        u32 other = __shfl_up_sync(FULL, upto, s);
        if (lane() >= s) upto += other;
    }
    if (lane() == WARP - 1) o.warps[warp()] = upto;
    __syncthreads();
    u32 start = __reduce_add_sync(FULL, lane() < warp() ? o.warps[lane()] : 0u) + upto - sum;
    if (threadIdx.x == THREADS - 1) o.valid = start + sum;
    bool crowded = false;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        u32 members = own.bin[i];
        crowded |= start < k && members > CROWDED;
        if (start < k && start + members >= k) o.end = start + members;
        own.bin[i] = start << 16 | members;
        start += members;
    }
    ((Own*)o.fine)[threadIdx.x] = own;
    return __syncthreads_or(crowded);
}

// By comparison: `count` candidates in `sorted`, each there once, the best first.
template <int THREADS> static __device__ __noinline__ void bitonic(Candidate* sorted, u32 count) {
    u32 size = 64;
    while (size < count) size *= 2;
    for (u32 i = count + threadIdx.x; i < size; i += THREADS) sorted[i] = 0;
    __syncthreads();
    for (u32 run = 2; run <= size; run *= 2) {
        for (u32 step = run / 2; step > 0; step /= 2) {
            for (u32 i = threadIdx.x; i < size / 2; i += THREADS) {
                u32 a = 2 * i - (i & (step - 1)), b = a + step;
                Candidate x = sorted[a], y = sorted[b];
                if ((x < y) == !(a & run)) {
                    sorted[a] = y;
                    sorted[b] = x;
                }
            }
            __syncthreads();
        }
    }
}

// What is known of the candidates.
struct Given {
    u32 used;          // entries of a thread
    float top, worst;  // ends of the scores
    bool same;         // those of this warp have equal scores
};

// Lanes before this one.
static __device__ __forceinline__ u32 lanes_before() { return (1u << lane()) - 1; }

// Counts entries in, a thread's place among them to the low half of `at`, whose high half says which count. `same`: all of this
// warp mean the same one, where equal scores would queue up.
template <int OWN>
static __device__ __forceinline__ void count_in(u32* counts, u32 (&at)[OWN], const Candidate (&own)[OWN], u32 used, bool same) {
    if (!same) {
#pragma unroll
        for (u32 e = 0; e < OWN; e++) {
            if (e < used && own[e]) at[e] |= atomicAdd(counts + (at[e] >> 16), 1u);
        }
        return;
    }
    u32 which = 0, all = 0, base = 0;
#pragma unroll
    for (u32 e = 0; e < OWN; e++) {
        u32 there = __ballot_sync(FULL, own[e] != 0);
        if (own[e]) {
            which = at[e] >> 16;
            at[e] |= all + __popc(there & lanes_before());
        }
        all += __popc(there);
    }
    which = __reduce_max_sync(FULL, which);
    if (lane() == 0 && all) base = atomicAdd(counts + which, all);
    base = __shfl_sync(FULL, base, 0);
#pragma unroll
    for (u32 e = 0; e < OWN; e++) at[e] += base;
}

// f(e) for every candidate of a thread.
template <int OWN, class F> static __device__ __forceinline__ void each(const Candidate (&own)[OWN], u32 used, F f) {
#pragma unroll
    for (u32 e = 0; e < OWN; e++) {
        if (e < used && own[e]) f(e);
    }
}

// Every thread brings its candidates, 0 for none; entries from `used` on are 0 in all threads.
template <int THREADS, int OWN>
static __device__ __forceinline__ void put_in_order(Order& o, Candidate (&own)[OWN], const Given& given, const Output& to) {
    const u32 used = given.used;
    const Linear bins(given.top, given.worst, FINE);
    u32 at[OWN];  // bin << 16 | place among its members, then span
#pragma unroll
    for (u32 e = 0; e < OWN; e++) at[e] = own[e] ? bins.bin(score_of(own[e])) << 16 : 0;
    for (bool refined = false;; refined = true) {
        count_in(o.fine, at, own, used, given.same && !refined);
        __syncthreads();
        bool crowded = starts<THREADS>(o, to.k);
        each(own, used, [&](u32 e) {
            u32 span = o.fine[at[e] >> 16], start = span >> 16, place = start + (at[e] & 0xffff);
            if (start < to.k) {
                o.sorted[place] = own[e];
                o.span[place] = span;
            } else {
                own[e] = 0;
            }
            at[e] = span;
        });
        __syncthreads();
        if (!crowded) break;
        u32 end = o.valid < to.k ? o.valid : o.end;
        if (refined) {
            bitonic<THREADS>(o.sorted, end);
            for (u32 i = threadIdx.x; i < min(to.k, end); i += THREADS) to.out[i] = (int)index_of(o.sorted[i]) + to.offset;
            to.fill(end);
            return;
        }
        u32 low = ~0u, high = 0;
        each(own, used, [&](u32 e) {
            if ((at[e] & 0xffff) <= CROWDED) return;
            low = min(low, index_of(own[e]));
            high = max(high, index_of(own[e]));
            if ((own[e] ^ o.sorted[at[e] >> 16]) >> 32) atomicOr(&o.fine[bins.bin(score_of(own[e]))], MIXED);
        });
        low = __reduce_min_sync(FULL, low);
        high = __reduce_max_sync(FULL, high);
        if (lane() == 0) {
            atomicMin(&o.low, low);
            atomicMax(&o.high, high);
        }
        __syncthreads();
        low = o.low;
        float scale = 1.0f / ((float)(o.high - low) + 1.0f);
        each(own, used, [&](u32 e) {
            u32 members = at[e] & 0xffff, into = at[e] >> 16;
            if (members > CROWDED) {
                const float score = score_of(own[e]);
                const u32 bin = bins.bin(score);
                // Monotone both ways.
                float part = o.fine[bin] & MIXED ? bins.place(score) - (float)bin : (float)(index_of(own[e]) - low) * scale;
                into += min(members - 1, (u32)(part * (float)members));
            }
            at[e] = into >> (end > FINE) << 16;
        });
        __syncthreads();
        o.clear<THREADS>();
        __syncthreads();
    }
    u32 end = o.valid < to.k ? o.valid : o.end;
    for (u32 p = threadIdx.x; p < end; p += THREADS) {
        Candidate me = o.sorted[p];
        u32 span = o.span[p], rank = span >> 16, members = span & 0xffff;
        const Candidate* bin = o.sorted + rank;
        for (u32 i = 0; members > 1 && i < members; i += 4) {
            Candidate other[4];
#pragma unroll
            for (u32 j = 0; j < 4; j++) other[j] = i + j < members ? bin[i + j] : 0;
#pragma unroll
            for (u32 j = 0; j < 4; j++) rank += other[j] > me;
        }
        if (rank < to.k) to.out[rank] = (int)index_of(me) + to.offset;
    }
    to.fill(end);
}
