// Copies rows of bytes: grid (pieces, rows). Aligned pieces go 16 bytes at a time.

struct Head {
    device uchar* out;
    ulong bytes;  // of one row
    uint rows, pad;
};

struct Row {
    device const uchar* source;  // null: a padding entry
};

[[kernel, max_total_threads_per_threadgroup(256)]] void gather_rows(ARGUMENTS) {
    device const uchar* source = ((device const Row*)(&head + 1))[block.y].source;
    if (!source) return;
    device uchar* out = head.out + block.y * head.bytes;
    ulong thread_of_row = ulong(block.x) * block_size.x + thread_id, threads = ulong(blocks.x) * block_size.x;
    ulong done = 0;
    if ((((ulong)source | (ulong)out) & 15) == 0) {
        ulong wide = head.bytes / 16;
        for (ulong i = thread_of_row; i < wide; i += threads) ((device uint4*)out)[i] = ((device const uint4*)source)[i];
        done = wide * 16;
    }
    for (ulong i = done + thread_of_row; i < head.bytes; i += threads) out[i] = source[i];
}
