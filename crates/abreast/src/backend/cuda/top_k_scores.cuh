// What the blocks of top_k_hopper.cu share, and how they read a row.

struct alignas(16) Row {
    u64 scores;  // f32 [n]; with `in_scratch` an offset in bytes
    u64 out;     // first slot in out
    i64 n;       // -1: a padding entry that writes nothing
    int offset, pad;
};

struct alignas(16) Table {
    u64 out;     // i32
    u64 status;  // u32 [rows], or 0
    int k, rows, in_scratch, pad;
    Row row[1];
};

#define BINS 128          // of the selecting histograms
#define COUNT_MAX 4095u   // counts are cut to this: above every k, and 16 of them fit 16 bits
#define ALONE 16384u      // longest row that one block of a cluster takes,
#define ALONE_K 768       // and of how many it seeks, beyond CAP: more candidates are better spread

template <int C, bool KEEPS> struct Shared {
    static constexpr u32 ITEMS = C == 1 ? CAP : 1024;  // most collected fours
    Order order;
    float4 four[KEEPS ? ITEMS : 1];  // collected ones, from registers
    Candidate inbox[C > 1 ? CAP : 1];  // block 0: the first CAP / C candidates of each block, sent as they are found
    alignas(16) u32 histogram[BINS];
    alignas(16) u32 joined[2][C][BINS / 2];  // every block's, two counts a word; by turns
    u64 range[C];   // best and worst of each block
    u32 counts[C];  // of each block: candidates, those sent to the inbox << 16, NONFINITE
    Barrier hop[2], inbox_barrier, rest_barrier;
    uint2 warps[WARP];
    u32 found, fours;           // of this block: candidates, entries of `work`
    u32 bin, before, members;   // what the joined histogram says
};

#define NONFINITE 0x80000000u

static __device__ __forceinline__ float best_of(const float4& x) { return fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w)); }
static __device__ __forceinline__ void store_status(const Table* t, u32 row, bool nonfinite) {
    if (!t->status) return;
    u32* word = (u32*)t->status + row;
    if (t->in_scratch) {
        if (nonfinite) *word |= NONFINITE_SCORE;
    } else {
        *word = nonfinite ? NONFINITE_SCORE : 0;
    }
}

static __device__ __forceinline__ bool all_finite(const float4& x) {
    return fmaf(x.x, 0.0f, fmaf(x.y, 0.0f, fmaf(x.z, 0.0f, x.w * 0.0f))) == 0.0f;
}
// Whether one was not finite; it is -inf now.
static __device__ __forceinline__ bool mend(float& x) {
    if (finite(x)) return false;
    x = -F32_INF;
    return true;
}
static __device__ __forceinline__ bool mend(float4& x) { return mend(x.x) | mend(x.y) | mend(x.z) | mend(x.w); }

template <int LATER> static __device__ __forceinline__ void copies_done() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
}

// A row's scores, four at a time.
struct Scores {
    const float* at;
    u32 n;
    bool aligned;

    __device__ __forceinline__ Scores(const Table* t, const Row& row, const char* scratch)
        : at((const float*)__cvta_global_to_generic((t->in_scratch ? (u64)scratch : 0) + row.scores)), n((u32)row.n), aligned((row.scores & 15) == 0) {}

    // Where the row's whole fours end; what is left there makes none.
    __device__ __forceinline__ u32 end() const { return n & ~3u; }

    // The four at i, or the last whole one where there is none: loads that nothing waits for, so that many are under way.
    // The row has a whole one.
    __device__ __forceinline__ float4 fetch(u32 i) const {
        const float* four = at + min(i, end() - 4);
        if (aligned) return *(const float4*)four;
        return make_float4(four[0], four[1], four[2], four[3]);
    }
    // The four at i on its way to shared memory; zeros where there is none.
    __device__ __forceinline__ void start_copy(u32 i, float4* to) const {
        const u32 there = shared_address(to), bytes = i < end() ? 4 : 0;
        const float* four = at + min(i, end() - 4);
        if (aligned) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(there), "l"(four), "r"(4 * bytes) : "memory");
        } else {
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(there + 4 * e), "l"(four + e), "r"(bytes) : "memory");
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    // What was fetched for i becomes what is there: -inf beyond the end, and for what is not finite; `bad` where there is
    // something like that.
    __device__ __forceinline__ void settle(float4& x, u32 i, bool& bad) const {
        if (i >= end()) {
            x.x = i < n ? at[i] : 0.0f;
            x.y = i + 1 < n ? at[i + 1] : 0.0f;
            x.z = i + 2 < n ? at[i + 2] : 0.0f;
            x.w = 0.0f;
        }
        if (!all_finite(x)) bad |= mend(x);
        if (i >= end()) {
            if (i >= n) x.x = -F32_INF;
            if (i + 1 >= n) x.y = -F32_INF;
            if (i + 2 >= n) x.z = -F32_INF;
            x.w = -F32_INF;
        }
    }
    __device__ __forceinline__ float4 any(u32 i, bool& bad) const {
        float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (i < end()) x = fetch(i);
        settle(x, i, bad);
        return x;
    }
};
