// The work list of index scores. Rows are cut into tiles of keys; all tiles of a call are numbered through, row after row, and
// a block has `per` of them, one after the other, or one more. What a block has of a row is a part. A key's score depends on
// that key alone, so where a tile runs decides no bit.

struct Row {
    u64 keys;    // bf16 [kv_len][dim]
    u64 query;   // row of q and weights
    u64 out;     // first score in out
    i64 count;   // keys that the query may see; -1: a padding entry that writes nothing
    i64 first;   // its first tile's number: never less than the row's before it
    u64 said;    // by parts, until all have opened: how many have; BAD if one of them found something
    u32 parts;   // how many parts it has
    u32 pad;
};

struct Table {
    u64 q;       // bf16 [queries][heads][dim]
    u64 weights; // f32 [queries][heads]
    u64 out;     // f32; 0: the scratch memory
    u64 status;  // u32 [rows], or 0
    i64 tiles, per;
    int tile;    // keys of a tile
    int heads, dim, rows;
    u32 busy;    // blocks that have something to do: the first ones, and at least one
    u32 longer;  // how many of these, the first ones, have a tile more
    u32 ahead;   // of the first part of a block, tiles that it asks the L2 cache for before its turn
    u32 pad;
    Row row[1];
};

// The value of one lane, in all.
template <class T> static __device__ __forceinline__ T from_lane(T x, int from) {
    u64* words = (u64*)&x;
#pragma unroll
    for (int i = 0; i < (int)(sizeof(T) / sizeof(u64)); i++) words[i] = __shfl_sync(FULL, words[i], from);
    return x;
}

// The row that a tile is of, the last that starts at it or before it, and its number. A whole warp looks at 32 rows at once, each
// lane at all of one: what is asked for later waits for memory again.
static __device__ __forceinline__ Row row_of(const Row* rows, int count, i64 tile, int& number) {
    int stride = 1;
    while (stride * WARP < count) stride *= WARP;
    for (number = 0;; stride /= WARP) {
        int r = number + lane() * stride;
        Row mine = rows[min(r, count - 1)];
        int last = __popc(__ballot_sync(FULL, r < count && mine.first <= tile)) - 1;
        number += last * stride;
        if (stride == 1) return from_lane(mine, last);
    }
}

// Calls `work` with each row that a block has a part of, the part's first key and how many keys it has; for whole warps.
template <class Work> static __device__ __forceinline__ void each_part(const Table* head, const Row* rows, Work work) {
    u32 longer = head->longer;
    i64 tile = blockIdx.x * head->per + min(blockIdx.x, longer), end = min(tile + head->per + (blockIdx.x < longer), head->tiles);
    while (tile < end) {
        int r;
        const Row row = row_of(rows, head->rows, tile, r);
        i64 first = (tile - row.first) * head->tile;
        int keys = (int)min(row.count - first, (end - tile) * head->tile);
        tile += (keys + head->tile - 1) / head->tile;
        work(r, row, first, keys);
    }
}

// The status words of rows without a key, which have no part; for one warp of every block.
static __device__ __forceinline__ void clear_empty(const Table* t) {
    if (!t->status) return;
    for (int r = blockIdx.x * WARP + lane(); r < t->rows; r += gridDim.x * WARP)
        if (t->row[r].count == 0) ((u32*)t->status)[r] = 0;
}

// The others need no launch of their own, and no block waits for another. A part clears its row's word before it counts itself as
// open; the last one to open brings the count back to 0, for the next launch with this table. A part that is bad says so beside the
// count: if all parts are open then, no clearing is to come, and it sets the word; if not, those that open later find what it
// said, and set the word after they have cleared it.
#define BAD (1ull << 32)

static __device__ __forceinline__ void clear(const Table* t, int r) {
    if (t->status) ((volatile u32*)t->status)[r] = 0;
}

// For the thread that has cleared the row's word, early in the part.
static __device__ __forceinline__ void open_part(Table* t, int r) {
    if (!t->status) return;
    u64* place = &t->row[r].said;
    u64 said;
    asm volatile("atom.add.acq_rel.gpu.global.u64 %0, [%1], 1;" : "=l"(said) : "l"(place) : "memory");
    if ((u32)said + 1 == t->row[r].parts) atomicExch(place, 0ull);
    if (said & BAD) ((volatile u32*)t->status)[r] = NONFINITE_SCORE;
}

// For any thread that found something bad, when the part is open.
static __device__ __forceinline__ void report_bad(Table* t, int r) {
    if (!t->status) return;
    u64* place = &t->row[r].said;
    u64 said = *(volatile u64*)place;
    // This part is open: a count of 0 is that of all.
    while ((u32)said != 0 && (u32)said != t->row[r].parts) {
        u64 found = atomicCAS(place, said, said | BAD);
        if (found == said) return;
        said = found;
    }
    __threadfence();
    ((volatile u32*)t->status)[r] = NONFINITE_SCORE;
}
