// What a block of Hopper's sparse attention is to do, and how a row ends.

extern __shared__ __align__(1024) unsigned char memory[];

// What the blocks of a row found out, in each block's shared memory.
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
    int head, heads, group;
    bool joined;  // the cluster has other blocks

    // Of a block that takes the row's `part`th group of heads.
    __device__ Task(const Table* t, u32 blocks_x, int part, Flags* flags) : t(t), row(&t->row[BLOCK_Y]), flags(flags) {
        joined = blocks_x > 1;
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
    // What warps that do not sum do at the end: no block leaves while others reach into its memory.
    __device__ void leave() const {
        if (!joined) return;
        cluster_arrive();
        cluster_wait();
        if (!suspicious()) return;
        cluster_arrive();
        cluster_wait();
    }
};
