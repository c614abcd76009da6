// What a block of Hopper's sparse attention is to do, and how a row ends.

extern __shared__ __align__(1024) unsigned char memory[];

// What the blocks of a group of heads found out, in each block's shared memory.
struct Flags {
    u32 suspect[MAX_HEADS / 32];  // a bit a head
    int invalid;
};

// Copied from the table while launches before this may still run.
struct Task {
    const Table* t;
    const Row* row;
    Flags* flags;
    const int* indices;
    const char *kv, *queries;  // queries of its heads
    bf16* out;                 // of its heads
    const float* sinks;        // of its heads, or null
    float scale;
    i64 kv_len;
    u32 shared;
    int width, slots, tiles;
    int part, parts;  // which group of heads, and how many a row has
    int head, heads, group;

    // Of a block of `blocks` that take a group of heads together.
    __device__ Task(const Table* t, u32 blocks_x, int blocks, Flags* flags) : t(t), row(&t->row[BLOCK_Y]), flags(flags) {
        part = BLOCK_X / blocks;
        parts = blocks_x / blocks;
        shared = shared_address(memory);
        width = row->width;
        slots = slots_of(width);
        tiles = (width + slots - 1) / slots;
        group = t->group;
        head = part * group;
        heads = min(group, t->heads - head);
        indices = (const int*)row->indices;
        kv = (const char*)row->kv;
        kv_len = row->kv_len;
        queries = (const char*)t->q + (row->query * t->heads + head) * (u64)(DIM * 2);
        out = (bf16*)t->out + (row->out * t->heads + head) * (u64)DIM;
        sinks = t->sinks ? (const float*)t->sinks + head : nullptr;
        scale = t->scale;
    }

    // Whether a slot's index is one of the cache's rows.
    __device__ bool there(int index) const { return index >= 0 && index < kv_len; }

    __device__ bool suspicious() const {
        const volatile Flags* f = flags;
        u32 any = f->invalid;
        for (int i = 0; i < MAX_HEADS / 32; i++) any |= f->suspect[i];
        return any;
    }
};
