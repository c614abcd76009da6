// What every attention kernel reads.

struct Row {
    u64 kv;          // bf16 [kv_len][dim]
    u64 indices;     // i32 [width]
    u64 query, out;  // rows of q and out
    i64 kv_len;
    int width;
    u32 active;      // 0: a padding entry that writes nothing; groups of heads may tell here how they ended, the last makes it 1 again
};

struct Table {
    u64 q;           // bf16 [queries][heads][dim]
    u64 sinks;       // f32 [heads], or 0
    u64 out;         // bf16 [outputs][heads][dim]
    u64 status;      // u32 [rows], or 0
    float scale;
    int heads, dim;
    int width;       // of the scratch: at least every row's
    int rows;
    int group;       // heads of a block, for the kernel that asks
    Row row[1];
};

