// The compressor: one block a row, a thread has the features f, f + blockDim, ... and goes through the row's tokens by
// itself. Only the mean of squares at a block's end needs the other threads.

struct Row {
    u64 kv, score;              // f32 [tokens][features]
    u64 kv_state, score_state;  // f32 [state_rows][features]
    u64 out;                    // first row of out
    u32 start, tokens, state_rows;
    int active;                 // 0: a padding entry that writes nothing
};

struct Table {
    u64 ape;     // f32 [ratio][features]
    u64 norm;    // f32 [d]
    u64 out;     // bf16 [outputs][d]
    u64 status;  // u32 [rows], or 0
    float epsilon;
    int ratio, d, overlaps, ring, every_token;
    int rows, pad;
    Row row[1];
};

// Which state row the token at a position has.
static __device__ __forceinline__ u64 state_row(const Table* t, const Row* row, u32 position) {
    if (t->ring) return position % row->state_rows;
    return (t->overlaps ? t->ratio : 0) + position % t->ratio;
}

// Row i of the window that ends before `end`, its place in the state; -1 where it is absent.
static __device__ __forceinline__ i64 window_place(const Table* t, const Row* row, u32 end, int i) {
    int features = (t->overlaps ? 2 : 1) * t->d;
    if (!t->overlaps) return (i64)(state_row(t, row, end - t->ratio + i) * features);
    if (i >= t->ratio) return (i64)(state_row(t, row, end - 2 * t->ratio + i) * features) + t->d;
    if (!t->ring) return (i64)i * features;
    if (end < 2 * t->ratio) return -1;
    return (i64)(state_row(t, row, end - 2 * t->ratio + i) * features);
}

extern "C" __global__ void __launch_bounds__(512, 1) compress(const Table* t, char*, u32 blocks_x) {
    extern __shared__ float pooled[];
    __shared__ float square_sum;
    const Row* row = &t->row[BLOCK_X];
    if (!row->active) return;
    int features = (t->overlaps ? 2 : 1) * t->d, window = (t->overlaps ? 2 : 1) * t->ratio;
    float* kv_state = (float*)row->kv_state;
    float* score_state = (float*)row->score_state;
    const float* norm = (const float*)t->norm;
    bf16* out = (bf16*)t->out + row->out * t->d;
    u32 faults = 0;
    for (u32 token = 0; token < row->tokens; token++) {
        u32 position = row->start + token;
        u64 s = state_row(t, row, position) * features;
        const float* ape = (const float*)t->ape + (u64)(position % t->ratio) * features;
        // A thread's features f and d + f are the ones that it pools: no thread waits for another.
        for (int f = threadIdx.x; f < t->d; f += blockDim.x) {
            for (int g = f; g < features; g += t->d) {
                float kv = ((const float*)row->kv)[(u64)token * features + g];
                float score = ((const float*)row->score)[(u64)token * features + g];
                float biased = __fadd_rn(score, ape[g]);
                bool legal = finite(kv) && finite(score) && biased == biased;
                kv_state[s + g] = finite(kv) ? kv : 0.0f;
                score_state[s + g] = legal ? biased : F32_NAN;
            }
        }
        bool ends = (position + 1) % t->ratio == 0;
        if (!ends) {
            if (!t->every_token) continue;
            for (int f = threadIdx.x; f < t->d; f += blockDim.x) out[f] = 0;
            out += t->d;
            continue;
        }
        bool bad = false;
        for (int f = threadIdx.x; f < t->d; f += blockDim.x) {
            float most = -F32_INF;
            for (int i = 0; i < window; i++) {
                i64 place = window_place(t, row, position + 1, i);
                if (place < 0) continue;
                float score = score_state[place + f];
                bad |= !(score <= F32_MAX);
                most = fmaxf(most, score);
            }
            float numerator = 0.0f, denominator = 0.0f;
            for (int i = 0; i < window; i++) {
                i64 place = window_place(t, row, position + 1, i);
                if (place < 0) continue;
                float weight = exp_ref(__fsub_rn(score_state[place + f], most));
                float value = kv_state[place + f];
                bad |= !finite(value);
                denominator = __fadd_rn(denominator, weight);
                numerator = __fmaf_rn(weight, value, numerator);
            }
            float c = __fdiv_rn(numerator, denominator);
            bad |= !finite(c);
            pooled[f] = widen(narrow(c));
        }
        bad = __syncthreads_or(bad);
        if (warp() == 0) {
            float p = 0.0f;
            for (int f = lane(); f < t->d; f += WARP) p = __fmaf_rn(pooled[f], pooled[f], p);
            p = tree(p);
            if (lane() == 0) square_sum = p;
        }
        __syncthreads();
        float mean = __fdiv_rn(square_sum, (float)t->d);
        float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, t->epsilon)));
        bad |= !finite(mean);
        for (int f = threadIdx.x; f < t->d; f += blockDim.x) {
            float result = __fmul_rn(__fmul_rn(pooled[f], r), norm[f]);
            bf16 rounded = narrow(result);
            bad |= !finite(result) || !finite_bits(rounded);
            out[f] = rounded;
        }
        // Also the moment from which `pooled` may be overwritten.
        if (__syncthreads_or(bad)) {
            faults = NONFINITE_STATE;
            for (int f = threadIdx.x; f < t->d; f += blockDim.x) out[f] = 0;
        }
        if (t->overlaps && !t->ring) {
            u64 half = (u64)t->ratio * features;
            for (int f = threadIdx.x; f < t->d; f += blockDim.x) {
                for (int i = 0; i < t->ratio; i++) {
                    for (int g = f; g < features; g += t->d) {
                        u64 at = (u64)i * features + g;
                        kv_state[at] = kv_state[half + at];
                        score_state[at] = score_state[half + at];
                    }
                }
            }
        }
        out += t->d;
    }
    if (threadIdx.x == 0 && t->status) ((u32*)t->status)[BLOCK_X] = faults;
}
