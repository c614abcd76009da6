// A compressor's state in the other layout: one block a row of the new state, grid (state rows, requests). Which old row it
// copies was found on the host; -1 is a fresh row.

struct Row {
    u64 kv_from, score_from, kv_to, score_to;  // f32 [rows][features]
    u64 sources;                               // i64 offset of this request's list in the table
    int to_rows, features;
};

struct Table {
    u64 unused;
    int rows, pad;
    Row row[1];
};

extern "C" __global__ void __launch_bounds__(256) convert_state(const Table* t, char*, u32 blocks_x) {
    const Row* row = &t->row[BLOCK_Y];
    dependents_may_start();
    wait_for_predecessors();
    if (BLOCK_X >= row->to_rows) return;
    const int* sources = (const int*)((const char*)t + row->sources);
    int old = sources[BLOCK_X];
    for (u64 f = threadIdx.x; f < (u64)row->features; f += blockDim.x) {
        u64 to = BLOCK_X * (u64)row->features + f, from = old * (u64)row->features + f;
        ((float*)row->kv_to)[to] = old < 0 ? 0.0f : ((const float*)row->kv_from)[from];
        ((float*)row->score_to)[to] = old < 0 ? -F32_INF : ((const float*)row->score_from)[from];
    }
}
