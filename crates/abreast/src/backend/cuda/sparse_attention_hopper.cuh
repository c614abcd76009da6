// What a block of Hopper's sparse attention has: see sparse_attention_hopper.cu.

#define REGISTERS 128  // of a thread at first
#define BLOCK 512      // threads: 4 warps that score, then those that sum, then those that load

// How C blocks share a row, and a block's shared memory: rings of whole tiles, of the other tiles' features, and of weights.
template <int C> struct Form {
    static constexpr int LOADERS = 256, SUMMERS = 128;
    static constexpr int COLUMNS = C == 2 ? 256 : C == 3 ? 192 : DIM / C;  // of 4 warps that sum; three blocks overlap
    static constexpr int LOAD_REGISTERS = C == 3 ? 72 : 64;
    static constexpr int SCORE_REGISTERS = C == 2 ? 208 : 216;
    static constexpr int SUM_REGISTERS = C == 2 ? 176 : C == 3 ? 152 : 168;
    static_assert(LOADERS * LOAD_REGISTERS + 128 * SCORE_REGISTERS + SUMMERS * SUM_REGISTERS <= 65536, "registers");

    // A tile: 8 pieces of 64 features, rows of 128 bytes. A slice: COLUMNS features of one. A weight: steps of 32 bytes a head, then maxima and sums.
    static constexpr int TILE_BYTES = TILE * DIM * 2, SLICE_BYTES = TILE * COLUMNS * 2, WEIGHT_BYTES = GROUP * (TILE * 2 + 8);
    // A place in the ring of weights has one sender.
    static constexpr int WEIGHTS = C == 2 ? 4 : C == 3 ? 6 : 8;
    // The ring of slices goes with that of weights, but for the block's own tiles. Queries on their way to registers lie where slices will
    // be: rows of 1,040 bytes, so that no two of 8 rows share a bank.
    static constexpr int SLICES = WEIGHTS / C * (C - 1), QUERY_PITCH = DIM * 2 + 16, STAGED_BYTES = GROUP * QUERY_PITCH;
    static constexpr int SLICES_BYTES = SLICES * SLICE_BYTES > STAGED_BYTES ? SLICES * SLICE_BYTES : STAGED_BYTES;
    static constexpr int ROOM = HOPPER_SHARED - 768 - WEIGHTS * WEIGHT_BYTES - SLICES_BYTES, TILES = ROOM / TILE_BYTES;
    static_assert(TILES > 0 && WEIGHTS % C == 0 && WEIGHTS > 1, "room");

    static constexpr int TILES_AT = 0, SLICES_AT = TILES_AT + TILES * TILE_BYTES, STAGED_AT = SLICES_AT;
    static constexpr int WEIGHTS_AT = SLICES_AT + SLICES_BYTES, BARRIERS_AT = WEIGHTS_AT + WEIGHTS * WEIGHT_BYTES;
    static constexpr int ATTENDED_AT = BARRIERS_AT + 8 * (4 * TILES + 3 * WEIGHTS + 2);
    static constexpr int FLAGS_AT = (ATTENDED_AT + TILES * TILE + 7) / 8 * 8, BYTES = FLAGS_AT + sizeof(Flags);
    static_assert(BYTES <= HOPPER_SHARED, "room");
};

// What a block knows.
template <int C> struct Block : Task {
    using F = Form<C>;
    int rank, first;  // among the C; the cluster's rank of the C's first

    __device__ Block(const Table* t, u32 blocks_x) : Task(t, blocks_x, BLOCK_X / C, (Flags*)(memory + F::FLAGS_AT)) {
        rank = BLOCK_X % C;
        first = BLOCK_X - rank;
    }

    // Barriers.
    __device__ u32 barrier(int i) const { return shared + F::BARRIERS_AT + 8 * i; }
    __device__ u32 tile_full(int stage, int half) const { return barrier(2 * stage + half); }
    __device__ u32 tile_free(int stage) const { return barrier(2 * F::TILES + stage); }
    __device__ u32 attended_known(int stage) const { return barrier(3 * F::TILES + stage); }
    __device__ u32 full(int i) const { return barrier(4 * F::TILES + i); }  // a tile's weights, and its slice if it is another's
    __device__ u32 slice_free(int i) const { return barrier(4 * F::TILES + F::WEIGHTS + i); }
    __device__ u32 weight_free(int i) const { return barrier(4 * F::TILES + 2 * F::WEIGHTS + i); }  // in the sender, of all
    __device__ u32 queries_full() const { return barrier(4 * F::TILES + 3 * F::WEIGHTS); }
    __device__ u32 queries_taken() const { return barrier(4 * F::TILES + 3 * F::WEIGHTS + 1); }

    __device__ u32 tile(int stage) const { return shared + F::TILES_AT + stage * F::TILE_BYTES; }
    __device__ u32 slice(int i) const { return shared + F::SLICES_AT + i * F::SLICE_BYTES; }
    __device__ u32 weight(int i) const { return shared + F::WEIGHTS_AT + i * F::WEIGHT_BYTES; }
    __device__ unsigned char* attended(int stage) const { return memory + F::ATTENDED_AT + stage * TILE; }
    __device__ u32 message() const { return group * (slots * 2 + 8); }  // bytes of a tile's weights
    __device__ int first_column() const { return min(rank * F::COLUMNS, DIM - F::COLUMNS); }
};

// Barriers with their counts, no flag set, no slot attended.
template <int C> static __device__ __forceinline__ void start(const Block<C>& b) {
    using F = Form<C>;
    if (threadIdx.x == 0) {
        *b.flags = {};
        for (int i = 0; i < F::TILES; i++) {
            barrier_init(b.tile_full(i, 0), 128);
            barrier_init(b.tile_full(i, 1), 128);
            barrier_init(b.tile_free(i), F::SUMMERS / WARP);
            barrier_init(b.attended_known(i), 4);
        }
        for (int i = 0; i < F::WEIGHTS; i++) {
            barrier_init(b.full(i), 1 + 128);
            barrier_init(b.slice_free(i), F::SUMMERS / WARP);
            barrier_init(b.weight_free(i), C * F::SUMMERS / WARP);
        }
        barrier_init(b.queries_full(), BLOCK - F::LOADERS);
        barrier_init(b.queries_taken(), 4);
        barriers_ready();
        for (int i = 0; i < F::WEIGHTS; i++)
            if (i < b.tiles && i % C != b.rank) barrier_expect(b.full(i), b.message());
    }
    for (int i = threadIdx.x; i < F::TILES * TILE; i += BLOCK) b.attended(0)[i] = 0;
}
