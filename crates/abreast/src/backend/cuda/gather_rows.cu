// Copies rows of bytes: grid (blocks of a row, rows), as wide as both ends of a row are aligned.

struct Row {
    u64 source;
};

struct Table {
    u64 out;
    u64 bytes;  // of one row
    int rows, pad;
    Row row[1];
};

#define IN_FLIGHT 4  // loads of a thread that wait for the memory together

// The units of `done..bytes`, thread after thread of the row's; returns where they end.
template <typename Unit>
static __device__ __forceinline__ u64 copy(char* out, const char* source, u64 done, u64 bytes, u64 thread, u64 threads) {
    Unit* to = (Unit*)(out + done);
    const Unit* from = (const Unit*)(source + done);
    u64 units = (bytes - done) / sizeof(Unit);
    for (u64 i = thread; i < units; i += IN_FLIGHT * threads) {
        Unit held[IN_FLIGHT];
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; j++) {
            if (i + j * threads < units) held[j] = from[i + j * threads];
        }
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; j++) {
            if (i + j * threads < units) to[i + j * threads] = held[j];
        }
    }
    return done + units * sizeof(Unit);
}

extern "C" __global__ void __launch_bounds__(256) gather_rows(const Table* t, char*, u32 blocks_x) {
    const char* source = (const char*)t->row[BLOCK_Y].source;
    u64 bytes = t->bytes, done = 0;
    char* out = (char*)t->out + BLOCK_Y * bytes;
    u64 thread = (u64)BLOCK_X * blockDim.x + threadIdx.x, threads = (u64)blocks_x * blockDim.x;
    dependents_may_start();
    wait_for_predecessors();
    if (!source) return;
    u64 ends = (u64)source | (u64)out;
    if (ends % sizeof(uint4) == 0) done = copy<uint4>(out, source, done, bytes, thread, threads);
    if (ends % sizeof(u32) == 0) done = copy<u32>(out, source, done, bytes, thread, threads);
    copy<char>(out, source, done, bytes, thread, threads);
}
