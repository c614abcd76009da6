// The compressor: one threadgroup a row, a thread has the features f, f + threads, ... and goes through the row's tokens by
// itself. Only the mean of squares at a block's end needs the other threads.

struct Head {
    device const float* ape;     // [ratio][features]
    device const float* norm;    // [d]
    device ushort* out;          // bf16 [outputs][d]
    device uint* status;         // [rows], or null
    float epsilon;
    uint ratio, d, overlaps, ring, every_token;
    uint rows, pad;
};

struct Row {
    device const float* kv;      // [tokens][features]
    device const float* score;
    device float* kv_state;      // [state_rows][features]
    device float* score_state;
    ulong out;                   // first row of out
    uint start, tokens, state_rows;
    uint active;                 // 0: a padding entry that writes nothing
};

// Which state row the token at a position has.
inline ulong state_row(device const Head& head, device const Row& row, uint position) {
    if (head.ring) return position % row.state_rows;
    return (head.overlaps ? head.ratio : 0) + position % head.ratio;
}

// Row i of the window that ends before `end`, its place in the state; -1 where it is absent.
inline long window_place(device const Head& head, device const Row& row, uint2 end_and_i) {
    uint end = end_and_i.x, i = end_and_i.y, ratio = head.ratio;
    long features = (head.overlaps ? 2 : 1) * long(head.d);
    if (!head.overlaps) return long(state_row(head, row, end - ratio + i)) * features;
    if (i >= ratio) return long(state_row(head, row, end - 2 * ratio + i)) * features + head.d;
    if (!head.ring) return i * features;
    if (end < 2 * ratio) return -1;
    return long(state_row(head, row, end - 2 * ratio + i)) * features;
}

[[kernel, max_total_threads_per_threadgroup(512)]] void compress(ARGUMENTS) {
    threadgroup atomic_uint flag;
    threadgroup float square_sum;
    threadgroup float* pooled = (threadgroup float*)shared;  // [d]
    device const Row& row = ((device const Row*)(&head + 1))[block.x];
    if (!row.active) return;
    uint d = head.d, threads = block_size.x;
    uint features = (head.overlaps ? 2 : 1) * d, window = (head.overlaps ? 2 : 1) * head.ratio;
    device ushort* out = head.out + row.out * d;
    uint faults = 0;
    for (uint token = 0; token < row.tokens; token++) {
        uint position = row.start + token;
        ulong s = state_row(head, row, position) * features;
        device const float* ape = head.ape + ulong(position % head.ratio) * features;
        // A thread's features f and d + f are the ones that it pools: no thread waits for another.
        for (uint f = thread_id; f < d; f += threads) {
            for (uint g = f; g < features; g += d) {
                float kv = row.kv[ulong(token) * features + g];
                float score = row.score[ulong(token) * features + g];
                float biased = add_ieee(score, ape[g]);
                bool legal = is_finite(kv) && is_finite(score) && biased == biased;
                row.kv_state[s + g] = is_finite(kv) ? kv : 0.0f;
                row.score_state[s + g] = legal ? biased : F32_NAN;
            }
        }
        bool ends = (position + 1) % head.ratio == 0;
        if (!ends) {
            if (!head.every_token) continue;
            for (uint f = thread_id; f < d; f += threads) out[f] = 0;
            out += d;
            continue;
        }
        bool bad = false;
        for (uint f = thread_id; f < d; f += threads) {
            float most = -F32_INF;
            for (uint i = 0; i < window; i++) {
                long place = window_place(head, row, uint2(position + 1, i));
                if (place < 0) continue;
                float score = row.score_state[place + f];
                bad = bad || !(score <= F32_MAX);
                most = fmax(most, score);
            }
            float numerator = 0.0f;
            float denominator = 0.0f;
            for (uint i = 0; i < window; i++) {
                long place = window_place(head, row, uint2(position + 1, i));
                if (place < 0) continue;
                float weight = exp_ref(row.score_state[place + f] - most);
                float value = row.kv_state[place + f];
                bad = bad || !is_finite(value);
                denominator = denominator + weight;
                numerator = fma(weight, value, numerator);
            }
            float c = numerator / denominator;
            bad = bad || !is_finite(c);
            pooled[f] = widen(narrow(c));
        }
        bad = group_any(bad, &flag, thread_id);
        if (warp == 0) {
            float p = 0.0f;
            for (uint f = lane; f < d; f += LANES) p = fma(pooled[f], pooled[f], p);
            p = tree(p);
            if (lane == 0) square_sum = p;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        float mean = square_sum / float(d);
        float r = 1.0f / precise::sqrt(mean + head.epsilon);
        bad = bad || !is_finite(mean);
        for (uint f = thread_id; f < d; f += threads) {
            float result = pooled[f] * r * head.norm[f];
            ushort rounded = narrow(result);
            bad = bad || !is_finite(result) || !is_finite_bits(rounded);
            out[f] = rounded;
        }
        // Also the moment from which `pooled` may be overwritten.
        if (group_any(bad, &flag, thread_id)) {
            faults = NONFINITE_STATE;
            for (uint f = thread_id; f < d; f += threads) out[f] = 0;
        }
        if (head.overlaps && !head.ring) {
            ulong half_state = ulong(head.ratio) * features;
            for (uint f = thread_id; f < d; f += threads) {
                for (uint i = 0; i < head.ratio; i++) {
                    for (uint g = f; g < features; g += d) {
                        ulong at = ulong(i) * features + g;
                        row.kv_state[at] = row.kv_state[half_state + at];
                        row.score_state[at] = row.score_state[half_state + at];
                    }
                }
            }
        }
        out += d;
    }
    if (thread_id == 0 && head.status) head.status[block.x] = faults;
}
