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

#define PARTS 16          // most blocks of a cluster
#define FEW 16            // blocks of a launch that leave most of the chip to the next one

// A row's word, read from the table before there is anything to store.
struct Status {
    u32* word;
    bool in_scratch;

    __device__ __forceinline__ Status(const Table* t, u32 row) : word(t->status ? (u32*)t->status + row : nullptr), in_scratch(t->in_scratch) {}
    __device__ __forceinline__ void store(bool nonfinite) const {
        if (!word || threadIdx.x > 0) return;
        if (in_scratch) {
            if (nonfinite) *word |= NONFINITE_SCORE;
        } else {
            *word = nonfinite ? NONFINITE_SCORE : 0;
        }
    }
};

// A bin of a histogram; entries before it and in it.
struct Bin {
    u32 bin, before, members;
};

struct Shared {
    Found inbox[CAP];     // block 0: the first CAP / parts candidates of each block, sent as they are found
    alignas(16) u32 histogram[BINS];
    alignas(16) u32 joined[2][PARTS][BINS / 2];  // every block's, two counts a word; by turns
    uint4 bound[PARTS];  // that each block found, and its best score
    u64 range[PARTS];    // best and worst of each block
    u32 counts[PARTS];   // of each block: candidates, those sent to the inbox << 16, NONFINITE
    Barrier hop[2], inbox_barrier, rest_barrier;
    union {
        uint2 warps[WARP];
        float2 ends[WARP];
    };
    Bin bin;           // what was sought last
    u32 found, fours;  // of this block: candidates, entries of `work`
    Output to;
    Status status;
    Order order;  // its end is used otherwise before the last stage, also beyond
};

#define NONFINITE 0x80000000u

static __device__ __forceinline__ float best_of(const float4& x) { return fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w)); }
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

// x[i], of registers.
template <int N> static __device__ __forceinline__ float pick(const float (&x)[N], u32 i) {
    float half[N / 2];
#pragma unroll
    for (u32 j = 0; j < N / 2; j++) half[j] = i & 1 ? x[2 * j + 1] : x[2 * j];
    return pick(half, i / 2);
}
template <> __device__ __forceinline__ float pick(const float (&x)[1], u32) { return x[0]; }

// A row's scores, four at a time.
struct Scores {
    const float* at;
    u32 n;

    __device__ __forceinline__ Scores(const Table* t, const Row& row, const char* scratch)
        : at((const float*)__cvta_global_to_generic((t->in_scratch ? (u64)scratch : 0) + row.scores)), n((u32)row.n) {}

    __device__ __forceinline__ bool aligned() const { return ((u64)at & 15) == 0; }
    // Where the row's whole fours end; what is left there makes none.
    __device__ __forceinline__ u32 end() const { return n & ~3u; }

    // The fours at `index(j)`, of rows of at least 4, or a whole one elsewhere: loads that nothing waits for, so that many are
    // under way.
    template <int J, class F> __device__ __forceinline__ void fetch_whole(float4 (&x)[J], F index) const {
        if (aligned()) {
#pragma unroll
            for (u32 j = 0; j < J; j++) x[j] = *(const float4*)(at + min(index(j), end() - 4));
        } else {
#pragma unroll
            for (u32 j = 0; j < J; j++) {
                const float* four = at + min(index(j), end() - 4);
                x[j] = make_float4(four[0], four[1], four[2], four[3]);
            }
        }
    }
    // With what there is of the last.
    template <int J, class F> __device__ __forceinline__ void fetch(float4 (&x)[J], F index) const {
        const float4 tail = rest();
        fetch_whole(x, index);
#pragma unroll
        for (u32 j = 0; j < J; j++) {
            if (index(j) == end()) x[j] = tail;
        }
    }
    // The last 1 to 3 scores, which make no four.
    __device__ __forceinline__ float4 rest() const {
        float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (n % 4 == 0) return x;
        x.x = at[end()];
        if (n % 4 > 1) x.y = at[end() + 1];
        if (n % 4 > 2) x.z = at[end() + 2];
        return x;
    }
    // What was fetched for i becomes what is there: -inf beyond the end, and for what is not finite; `bad` where there is
    // something like that.
    __device__ __forceinline__ void settle(float4& x, u32 i, bool& bad) const {
        if (i >= end()) {
            const u32 there = n - min(i, n);
            if (there < 1) x.x = 0.0f;
            if (there < 2) x.y = 0.0f;
            if (there < 3) x.z = 0.0f;
            if (!all_finite(x)) bad |= mend(x);
            if (there < 1) x.x = -F32_INF;
            if (there < 2) x.y = -F32_INF;
            if (there < 3) x.z = -F32_INF;
            x.w = -F32_INF;
        } else if (!all_finite(x)) {
            bad |= mend(x);
        }
    }
};
