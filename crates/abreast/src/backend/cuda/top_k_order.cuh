// The last stage of top_k_hopper.cu: one block puts at most CAP candidates in order and writes the k best.
//
// A counting sort: bins linear in value, prefix sums, each candidate to its bin's place, then its rank among the few of its
// bin. Where a bin is crowded, it is split into as many bins as it has members: by value, or where its scores seem to be
// equal, by index, and the guess is checked. What is crowded even then (indices in heaps), or was not equal, is sorted by
// comparison. The order is total: which way a row takes moves time, never the answer.

#define CAP 4096    // most candidates
#define FINE 2048   // bins of the counting sort
#define NOWHERE ~0u
#define CROWDED 24  // more members of a bin are not ranked one by one

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
// The best and the worst over a warp.
static __device__ __forceinline__ void ends_of_warp(float& best, float& worst) {
    best = value_of(__reduce_max_sync(FULL, ordered(best)));
    worst = value_of(__reduce_min_sync(FULL, ordered(worst)));
}
static __device__ __forceinline__ Candidate candidate(float score, u32 index) { return (u64)ordered(score) << 32 | ~index; }
static __device__ __forceinline__ float score_of(Candidate c) { return value_of((u32)(c >> 32)); }
static __device__ __forceinline__ u32 index_of(Candidate c) { return ~(u32)c; }

// A score and its index as they are found.
struct alignas(8) Found {
    u32 index;
    float score;
};

// Where a score lies between the best and the worst, in bins: monotone whatever the rounding. Halves keep the difference of
// two scores from overflowing.
struct Linear {
    float half_best, scale, last;

    __device__ __forceinline__ Linear(float best, float worst, u32 bins) : half_best(0.5f * best), last((float)(bins - 1)) {
        float distance = fmaf(-0.5f, worst, half_best);
        scale = distance > 0.0f ? fminf(__fdividef(last, distance), F32_MAX) : F32_MAX;
    }
    __device__ __forceinline__ float place(float score) const { return fminf(fmaxf(fmaf(-0.5f, score, half_best) * scale, 0.0f), last); }
    // A score above the best goes to the first bin.
    __device__ __forceinline__ u32 bin(float score) const { return (u32)place(score); }
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
        Found list[CAP];  // before: where candidates are collected
    };
    // Zero before the last stage. Members of every bin, then start << 16 | members; and how many of those are in `sorted`, or
    // by turns, where bins are split. Behind the bins one a lane, for what is no candidate.
    alignas(16) u32 bins[2][FINE + WARP];
    u32 warps[WARP];
    u32 low, high;   // indices of crowded bins
    u32 valid, end;  // candidates; where the last bin ends that holds one of the k best
    union {
        alignas(16) u32 span[CAP];  // of each place in `sorted`: its bin's start << 16 | members
        u32 work[CAP];  // before: fours that hold candidates
    };

    template <int THREADS> __device__ __forceinline__ void clear(u32 which) {
        for (u32 i = threadIdx.x; i < FINE / 4; i += THREADS) ((uint4*)bins[which])[i] = make_uint4(0, 0, 0, 0);
    }
    template <int THREADS> __device__ __forceinline__ void start() {
        clear<THREADS>(0);
        clear<THREADS>(1);
        if (threadIdx.x == 0) low = ~0u, high = 0;
    }
};

// Members of every bin to start << 16 | members; whether a bin that may matter is crowded. Ends with a barrier.
template <int THREADS> static __device__ __forceinline__ bool starts(Order& o, u32 which, u32 k) {
    constexpr int OWN = FINE / THREADS;
    struct alignas(4 * OWN) Own {
        u32 bin[OWN];
    };
    Own own = ((Own*)o.bins[which])[threadIdx.x];
    u32 sum = 0;
#pragma unroll
    for (int i = 0; i < OWN; i++) sum += own.bin[i];
    const u32 of_warp = __reduce_add_sync(FULL, sum);
    if (lane() == 0) o.warps[warp()] = of_warp;
    __syncthreads();
    const u32 before = lane() < warp() ? o.warps[lane()] : 0;
    const u32 upto = sum_to_lane(sum);
    u32 start = __reduce_add_sync(FULL, before) + upto - sum;
    if (threadIdx.x == THREADS - 1) o.valid = start + sum;
    const bool matters = start < k, last = matters && start + sum >= k;
    u32 most = 0;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const u32 members = own.bin[i];
        most = max(most, members);
        own.bin[i] = start << 16 | members;
        if (last && start < k) o.end = start + members;
        start += members;
    }
    ((Own*)o.bins[which])[threadIdx.x] = own;
    return __syncthreads_or(matters && most > CROWDED);
}

// f(e) for every entry of a thread.
template <int OWN, class F> static __device__ __forceinline__ void each(u32 used, F f) {
#pragma unroll
    for (u32 e = 0; e < OWN; e++) {
        if (e >= used) break;
        f(e);
    }
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
    u32 last;          // where many may have the worst score: the last index of those; else ~0
};

// Every thread brings its candidates, 0 for none; entries from `used` on are 0 in all threads.
template <int THREADS, int OWN>
static __device__ __forceinline__ void put_in_order(Order& o, Candidate (&own)[OWN], const Given& given, const Output& to) {
    const u32 used = given.used, none = FINE + lane();
    // Bins by score, and where the worst is that of many, by index for those.
    const bool tied = given.last != ~0u;
    const Linear bins(given.top, given.worst, tied ? FINE / 2 : FINE);
    const float by_index = __fdividef((float)(FINE / 2 - 1), (float)given.last + 1.0f);
    auto bin_of = [&](Candidate c) -> u32 {
        const float score = score_of(c);
        return (u32)(tied && score == given.worst ? fmaf((float)index_of(c), by_index, FINE / 2) : bins.place(score));
    };
    u32 bin[OWN], span[OWN], place[OWN], home[OWN];  // home: a place in the bin that was split by index
    each<OWN>(used, [&](u32 e) {
        const u32 of_score = bin_of(own[e]);
        bin[e] = own[e] ? of_score : none;
    });
    // What comes back from memory is looked at in a loop of its own: so loads are under way together.
    u32 which = 0;
    bool equal = false;
    // The first time many may meet in a bin: which place each gets is asked only when few do.
    auto count = [&](bool again) -> bool {
        each<OWN>(used, [&](u32 e) {
            if (again) place[e] = atomicAdd(&o.bins[which][bin[e]], 1u);
            else atomicAdd(&o.bins[which][bin[e]], 1u);
        });
        __syncthreads();
        if (again) o.clear<THREADS>(which ^ 1);
        const bool crowded = starts<THREADS>(o, which, to.k);
        each<OWN>(used, [&](u32 e) { span[e] = o.bins[which][bin[e]]; });
        each<OWN>(used, [&](u32 e) {
            // What was split by index may have to be looked at again.
            if (span[e] >> 16 >= to.k && !equal) own[e] = 0, bin[e] = none;
        });
        return crowded;
    };
    bool crowded = count(false);
    u32 whole = 0;  // candidates that are left before that
    if (!crowded) {
        each<OWN>(used, [&](u32 e) { place[e] = atomicAdd(&o.bins[1][bin[e]], 1u); });
    } else {
        // Between which indices are crowded bins, and are their scores equal? Neighbours are likely to tell.
        u32 low = ~0u, high = 0;
        bool differ = false;
        each<OWN>(used, [&](u32 e) {
            const u32 score = (u32)(own[e] >> 32), next = __shfl_down_sync(FULL, bin[e], 1), of_next = __shfl_down_sync(FULL, score, 1);
            const bool in_crowd = own[e] && (span[e] & 0xffff) > CROWDED;
            differ |= in_crowd & (next == bin[e]) & (of_next != score);
            low = min(low, in_crowd ? index_of(own[e]) : ~0u);
            high = max(high, in_crowd ? index_of(own[e]) : 0);
        });
        low = __reduce_min_sync(FULL, low);
        high = __reduce_max_sync(FULL, high);
        if (lane() == 0 && low <= high) {
            atomicMin(&o.low, low);
            atomicMax(&o.high, high);
        }
        equal = !__syncthreads_or(differ);
        const float scale = __fdividef(1.0f, (float)(o.high - o.low) + 1.0f);
#pragma unroll 1
        for (low = o.low;; equal = true) {
            whole = o.valid < to.k ? o.valid : o.end;
            const u32 shift = whole > FINE;
            each<OWN>(used, [&](u32 e) {
                const u32 members = span[e] & 0xffff, start = span[e] >> 16;
                // Monotone both ways.
                const float part = equal ? (float)(index_of(own[e]) - low) * scale : bins.place(score_of(own[e])) - (float)bin[e];
                const u32 further = members > CROWDED ? min(members - 1, (u32)(fmaxf(part, 0.0f) * (float)members)) : 0;
                home[e] = members > CROWDED && own[e] ? start + 1 : NOWHERE;
                bin[e] = own[e] ? (start + further) >> shift : none;
            });
            which ^= 1;
            crowded = count(true);
            if (equal || !crowded) break;
        }
    }
    each<OWN>(used, [&](u32 e) {
        if (!own[e]) return;
        const u32 at = (span[e] >> 16) + place[e];
        o.sorted[at] = own[e];
        o.span[at] = span[e];
    });
    __syncthreads();
    const u32 end = o.valid < to.k ? o.valid : o.end;
    if (equal) {
        // Were the scores of a bin that was split by index equal? All are compared with one that surely is of it.
        each<OWN>(used, [&](u32 e) {
            if (own[e] && home[e] != NOWHERE) crowded |= (own[e] ^ o.sorted[home[e]]) >> 32 != 0;
        });
        crowded = __syncthreads_or(crowded);
    }
    if (crowded) {
        bitonic<THREADS>(o.sorted, whole);
        for (u32 i = threadIdx.x; i < min(to.k, whole); i += THREADS) to.out[i] = (int)index_of(o.sorted[i]) + to.offset;
        return to.fill(whole);
    }
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
