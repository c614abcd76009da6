// Copies rows of bytes: grid (pieces, rows). Aligned pieces go 16 bytes at a time.

struct Row {
    u64 source;
};

struct Table {
    u64 out;
    u64 bytes;  // of one row
    int rows, pad;
    Row row[1];
};

extern "C" __global__ void __launch_bounds__(256) gather_rows(const Table* t, char*, u32 blocks_x) {
    const char* source = (const char*)t->row[BLOCK_Y].source;
    if (!source) return;
    char* out = (char*)t->out + BLOCK_Y * t->bytes;
    u64 thread = (u64)BLOCK_X * blockDim.x + threadIdx.x, threads = (u64)blocks_x * blockDim.x;
    u64 done = 0;
    if ((((u64)source | (u64)out) & 15) == 0) {
        u64 wide = t->bytes / 16;
        for (u64 i = thread; i < wide; i += threads) ((uint4*)out)[i] = ((const uint4*)source)[i];
        done = wide * 16;
    }
    for (u64 i = done + thread; i < t->bytes; i += threads) out[i] = source[i];
}
