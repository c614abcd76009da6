// Blocks of a ratio that overlap: a feature's two halves and its window in one thread, so that nobody waits for another's state.

#define OVERLAP (SLOTS / 2)  // the ratio
#define OVERLAPPED_THREADS 256

// A thread's slots of a window.
struct Slots {
    float kv[SLOTS], score[SLOTS];
};

template <bool IN_RING>
static __device__ __forceinline__ void pool_overlapped(const Row& row, u32 token, Place now, bool ends, float* norm, float* c, Meeting& meeting) {
    u32 d = row.d, features = 2 * d, bytes = features * sizeof(float);
    u64 place = (u64)(IN_RING ? now.row : OVERLAP + now.phase) * features;
    // In a ring the first block has nothing before it.
    bool first = IN_RING && now.position < OVERLAP;
    u32 oldest = IN_RING ? before(row, now, first ? OVERLAP - 1 : SLOTS - 1) : 0;
    for (u32 f = part() * blockDim.x + threadIdx.x; f < d; f += parts() * blockDim.x) {
        // The window's addresses before anything may be read.
        u64 low = f * sizeof(float), half = d * sizeof(float), kv_at[SLOTS - 1], score_at[SLOTS - 1];
#pragma unroll
        for (int i = 0; i < SLOTS - 1; i++) {
            u32 at = oldest + (first ? max(i - OVERLAP, 0) : i);
            if (IN_RING && at >= row.state_rows) at -= row.state_rows;
            u64 side = low + (IN_RING && i >= OVERLAP ? half : 0);
            kv_at[i] = (u64)at * bytes + (row.kv_state + side);
            score_at[i] = (u64)at * bytes + (row.score_state + side);
        }
        if (token == 0) wait_for_predecessors();
        Slots slots;
        // What moves at the block's end in the shifted layout, beside what is pooled: the current block's first half.
        Slots moved;
        if (ends) {
#pragma unroll
            for (int i = 0; i < SLOTS - 1; i++) {
                u64 side = IN_RING || i < OVERLAP ? 0 : half;
                slots.kv[i] = load(kv_at[i] + side);
                slots.score[i] = load(score_at[i] + side);
                if (!IN_RING && i >= OVERLAP) {
                    moved.kv[i - OVERLAP] = load(kv_at[i]);
                    moved.score[i - OVERLAP] = load(score_at[i]);
                }
            }
        }
        Token first_half = take(row, token, now.phase, features, f), second_half = take(row, token, now.phase, features, d + f);
        if (ends && f < blockDim.x) ask_for_norm(row, norm);
        keep(row, place + f, first_half);
        keep(row, place + d + f, second_half);
        if (!ends) continue;
        slots.kv[SLOTS - 1] = second_half.kv;
        slots.score[SLOTS - 1] = second_half.score;
        if (!IN_RING) {
            moved.kv[OVERLAP - 1] = first_half.kv;
            moved.score[OVERLAP - 1] = first_half.score;
#pragma unroll
            for (int i = 0; i < OVERLAP; i++) {
                keep(row, i * features + f, {moved.kv[i], moved.score[i]});
                keep(row, i * features + d + f, {slots.kv[OVERLAP + i], slots.score[OVERLAP + i]});
            }
        }
#pragma unroll
        for (int i = 0; i < OVERLAP; i++) {
            if (first) slots.kv[i] = 0.0f, slots.score[i] = -F32_INF;
        }
        float most = -F32_INF;
#pragma unroll
        for (int i = 0; i < SLOTS; i++) most = larger(most, slots.score[i]);
        float numerator = 0.0f, denominator = 0.0f;
#pragma unroll
        for (int i = 0; i < SLOTS; i++) {
            float weight = weigh(slots.score[i], most);
            denominator = __fadd_rn(denominator, weight);
            numerator = __fmaf_rn(weight, slots.kv[i], numerator);
        }
        float value = pooled(numerator, denominator);
        if (parts() == 1) c[f] = value;
        else meeting.send(&c[f], value);
    }
}
