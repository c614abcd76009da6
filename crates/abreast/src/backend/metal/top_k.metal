// Exact top-k: one threadgroup a row. A radix search from the top byte finds the k-th largest score; what is above it is taken,
// of what equals it the first ones in order; then the chosen are sorted. The order is total, so the answer is unique.

struct Head {
    device int* out;
    device uint* status;         // [rows], or null
    uint k, rows, in_scratch, pad;
};

struct Row {
    device const float* scores;  // [n]; with `in_scratch` an offset in bytes
    ulong out;                   // first slot in out
    long n;                      // -1: a padding entry that writes nothing
    int offset, pad;
};

constant constexpr uint THREADS = 1024;
constant constexpr uint WARPS = THREADS / LANES;

inline device const Row& row_of(device const Head& head, uint r) { return ((device const Row*)(&head + 1))[r]; }

// Larger for the better score; 0 for one that is not finite. Both zeros are one; subnormals stay, as no float is computed with.
inline uint ordered(float score) {
    uint bits = as_type<uint>(score);
    if (!is_finite(score)) return 0;
    if (bits == 0x80000000u) bits = 0;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

struct Counted {
    uint before, all;
};

// How many of the threads before this one have `value`, and how many of all.
inline Counted count_before(bool value, threadgroup uint* sums, uint2 lane_and_warp) {
    uint lane = lane_and_warp.x, warp = lane_and_warp.y;
    uint sum = value ? 1 : 0;
    for (ushort s = 1; s < LANES; s *= 2) {
        uint other = simd_shuffle_up(sum, s);
        if (lane >= s) sum += other;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane == LANES - 1) sums[warp] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint before = sum - (value ? 1 : 0), all = 0;
    for (uint s = 0; s < WARPS; s++) {
        if (s < warp) before += sums[s];
        all += sums[s];
    }
    return Counted{before, all};
}

[[kernel, max_total_threads_per_threadgroup(1024)]] void top_k(ARGUMENTS) {
    threadgroup atomic_uint histogram[256];
    threadgroup uint sums[WARPS];
    threadgroup atomic_uint flag;
    threadgroup int digit;
    threadgroup uint rest;
    threadgroup ulong* chosen = (threadgroup ulong*)shared;  // k rounded up to a power of two
    device const Row& row = row_of(head, block.x);
    if (row.n < 0) return;
    device const float* scores = head.in_scratch ? (device const float*)(scratch + (ulong)row.scores) : row.scores;
    long n = row.n;
    uint k = head.k;

    // The k-th largest, byte by byte: `prefix` are the bytes found so far, `need` how many are left to find below it.
    uint prefix = 0, need = k;
    bool bad = false, enough = true;
    // Fewer than k selectable: `enough` turns false, and all of them are taken.
    for (int shift = 24; shift >= 0 && enough; shift -= 8) {
        for (uint i = thread_id; i < 256; i += THREADS) atomic_store_explicit(&histogram[i], 0u, memory_order_relaxed);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (long i = thread_id; i < n; i += THREADS) {
            uint key = ordered(scores[i]);
            bad = bad || key == 0;
            // All bytes above this one are those found; two shifts, as one by 32 is none.
            bool candidate = key != 0 && (key >> shift >> 8) == (prefix >> shift >> 8);
            if (candidate) atomic_fetch_add_explicit(&histogram[(key >> shift) & 255], 1u, memory_order_relaxed);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (thread_id == 0) {
            uint left = need;
            int found = -1;
            for (int d = 255; d >= 0 && found < 0; d--) {
                uint here = atomic_load_explicit(&histogram[d], memory_order_relaxed);
                if (here >= left) {
                    found = d;
                } else {
                    left -= here;
                }
            }
            digit = found;
            rest = left;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        enough = digit >= 0;
        prefix |= uint(max(digit, 0)) << shift;
        need = rest;
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (!enough) need = 0;
    uint bound = enough ? prefix : 0;

    // In order of the index, THREADS scores at a time: above the bound all, equal to it the first `need`.
    uint taken = 0, equal = 0;
    for (long first = 0; first < n; first += THREADS) {
        long i = first + thread_id;
        uint key = i < n ? ordered(scores[i]) : 0;
        bool tied = key != 0 && key == bound;
        Counted ties = count_before(tied, sums, uint2(lane, warp));
        bool take = key > bound || (tied && equal + ties.before < need);
        Counted hits = count_before(take, sums, uint2(lane, warp));
        if (take) chosen[taken + hits.before] = ulong(key) << 32 | ulong(~uint(i));
        taken += hits.all;
        equal += ties.all;
    }
    uint size = 1;
    while (size < k) size *= 2;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = taken + thread_id; i < size; i += THREADS) chosen[i] = 0;

    // Bitonic sort, the best first.
    for (uint run = 2; run <= size; run *= 2) {
        for (uint step = run / 2; step > 0; step /= 2) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            for (uint i = thread_id; i < size / 2; i += THREADS) {
                uint a = 2 * i - (i & (step - 1)), b = a + step;
                bool descending = (a & run) == 0;
                ulong x = chosen[a], y = chosen[b];
                if ((x < y) == descending) {
                    chosen[a] = y;
                    chosen[b] = x;
                }
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    device int* out = head.out + row.out;
    for (uint i = thread_id; i < k; i += THREADS) out[i] = i < taken ? int(~uint(chosen[i])) + row.offset : NO_INDEX;
    bad = group_any(bad, &flag, thread_id);
    if (thread_id == 0 && bad) add_status(head.status, block.x, NONFINITE_SCORE);
}

[[kernel, max_total_threads_per_threadgroup(128)]] void top_k_start(ARGUMENTS) {
    uint r = block.x * block_size.x + thread_id;
    if (r < head.rows && head.status && row_of(head, r).n >= 0) head.status[r] = 0;
}
