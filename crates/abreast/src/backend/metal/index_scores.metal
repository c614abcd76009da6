// Index scores: the dot products of all heads with some keys, and their weighted sum over the heads in order.

struct Head {
    device const ushort* q;       // bf16 [queries][heads][dim]
    device const float* weights;  // [queries][heads]
    device float* out;            // null: the scratch memory
    device uint* status;          // [rows], or null
    uint heads, dim, rows, pad;
};

struct Row {
    device const ushort* keys;    // bf16 [kv_len][dim]
    ulong query;                  // row of q and weights
    ulong out;                    // first score in out
    long count;                   // keys that the query may see; -1: a padding entry
};

inline device const Row& row_of(device const Head& head, uint r) { return ((device const Row*)(&head + 1))[r]; }

struct Score {
    float sum;
    bool bad;
};

inline void add_head(thread Score& score, float dot, float weight) {
    score.bad = score.bad || !is_finite(dot) || !is_finite(weight);
    score.sum = fma(dot > 0.0f ? dot : 0.0f, weight, score.sum);
}

inline void put_score(device const Head& head, device uchar* scratch, thread const Score& score, ulong2 row_and_key) {
    bool bad = score.bad || !is_finite(score.sum);
    uint r = uint(row_and_key.x);
    device float* out = head.out ? head.out : (device float*)scratch;
    out[row_of(head, r).out + row_and_key.y] = bad ? -F32_INF : score.sum;
    if (bad) add_status(head.status, r, NONFINITE_SCORE);
}

[[kernel, max_total_threads_per_threadgroup(128)]] void index_scores_start(ARGUMENTS) {
    uint r = block.x * block_size.x + thread_id;
    if (r < head.rows && head.status && row_of(head, r).count >= 0) head.status[r] = 0;
}

// Grid (16 keys each, rows); a simdgroup takes 4 keys.
[[kernel, max_total_threads_per_threadgroup(128)]] void index_scores(ARGUMENTS) {
    uint r = block.y;
    device const Row& row = row_of(head, r);
    long first = (long(block.x) * 4 + warp) * PAIR_COLUMNS;
    if (first >= row.count) return;
    Columns columns;
#pragma unroll
    for (uint c = 0; c < PAIR_COLUMNS; c++)
        columns.row[c] = first + c < row.count ? row.keys + (first + c) * head.dim : nullptr;
    device const float* weights = head.weights + row.query * head.heads;
    Score score = {0.0f, false};
    for (uint h = 0; h < head.heads; h += PAIR_HEADS) {
        device const ushort* q = head.q + (row.query * head.heads + h) * head.dim;
        float dots = pair_dots(q, columns, head.heads - h, uint2(lane, head.dim));
        // Every lane of a column adds up the same, in the order of the heads.
        for (uint i = 0; i < PAIR_HEADS; i++) {
            float dot = simd_shuffle(dots, ushort(i * PAIR_COLUMNS + lane % PAIR_COLUMNS));
            if (h + i < head.heads) add_head(score, dot, weights[h + i]);
        }
    }
    if (lane < PAIR_COLUMNS && first + lane < row.count) put_score(head, scratch, score, ulong2(ulong(r), ulong(first + lane)));
}

// Grid (32 keys each, rows), in matrices: a key is read once for 64 heads.
[[kernel, max_total_threads_per_threadgroup(256)]] void index_scores_fast(ARGUMENTS) {
    threadgroup float tile[TILE_FLOATS];
    threadgroup long offset[TILE];
    uint r = block.y;
    device const Row& row = row_of(head, r);
    long first = long(block.x) * TILE;
    if (first >= row.count) return;
    if (thread_id < TILE) offset[thread_id] = first + thread_id < row.count ? (first + thread_id) * head.dim : -1;
    device const float* weights = head.weights + row.query * head.heads;
    Score score = {0.0f, false};
    for (uint h0 = 0; h0 < head.heads; h0 += TILE_HEADS) {
        uint heads = min(head.heads - h0, TILE_HEADS);
        TileDots dots = {head.q + (row.query * head.heads + h0) * head.dim, row.keys, heads, head.dim};
        tile_dots(dots, tile, offset, uint2(thread_id, warp));
        if (thread_id < TILE)
            for (uint h = 0; h < heads; h++) add_head(score, tile[h * PITCH + thread_id], weights[h0 + h]);
    }
    if (thread_id < TILE && first + thread_id < row.count) put_score(head, scratch, score, ulong2(ulong(r), ulong(first + thread_id)));
}
