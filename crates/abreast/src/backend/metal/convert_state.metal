// A compressor's state in the other layout: one threadgroup a row of the new state, grid (state rows, requests). Which old row it
// copies was found on the host; -1 is a fresh row. Floats are copied as bits.

struct Head {
    ulong unused;
    uint rows, pad;
};

struct Row {
    device const uint* kv_from;     // f32 [rows][features]
    device const uint* score_from;
    device uint* kv_to;
    device uint* score_to;
    ulong sources;                  // where this request's list of int starts in the table
    uint to_rows, features;
};

[[kernel, max_total_threads_per_threadgroup(256)]] void convert_state(ARGUMENTS) {
    device const Row& row = ((device const Row*)(&head + 1))[block.y];
    if (block.x >= row.to_rows) return;
    int old = ((device const int*)((device const uchar*)&head + row.sources))[block.x];
    for (uint f = thread_id; f < row.features; f += block_size.x) {
        ulong to = ulong(block.x) * row.features + f, from = ulong(max(old, 0)) * row.features + f;
        row.kv_to[to] = old < 0 ? 0u : row.kv_from[from];
        row.score_to[to] = old < 0 ? as_type<uint>(-F32_INF) : row.score_from[from];
    }
}
