// What a block of Hopper's sparse attention in clusters has: see sparse_attention_hopper.cu.

#define PIECE 128        // features of a piece of an own tile
#define REGISTERS 128    // of a thread at first
#define BLOCK 512        // threads: 4 warps that score, 4 that sum, 4 that load tiles, 3 that load slices, one that keeps the chains
#define SUMMERS 128
#define SLICERS 3        // warps that load slices

// How C blocks share a row, and a block's shared memory: rings of pieces of own tiles, of all tiles' slices, and of weights.
template <int C> struct Form {
    static constexpr int COLUMNS = C == 2 ? 256 : C == 3 ? 192 : DIM / C;  // that a block sums; three blocks overlap
    static constexpr int MOST_HEADS = C == 16 ? GROUP / 2 : GROUP;          // of a block
    static constexpr int LOAD_REGISTERS = C == 2 ? 56 : 64, SCORE_REGISTERS = 208, SUM_REGISTERS = C == 2 ? 192 : 176;
    static_assert(256 * LOAD_REGISTERS + 128 * SCORE_REGISTERS + SUMMERS * SUM_REGISTERS <= 65536, "registers");

    // Rows of 128 bytes, or of all a slice's columns. Slices lie first; then pieces, as many as there is room for; then weights, whose size goes with
    // the heads of a block.
    static constexpr int PIECE_BYTES = TILE * PIECE * 2, SLICE_ROW = COLUMNS < 64 ? COLUMNS * 2 : 128, SLICE_BYTES = TILE * COLUMNS * 2;
    static constexpr int SLICES = C == 16 ? 14 : C == 8 ? 11 : C == 4 ? 6 : 4;
    // Two rounds of weights, so that a sender is a round ahead of those who sum: a place has one sender. A round of 16 is enough.
    static constexpr int WEIGHTS = C == 16 ? C : 2 * C, PIECES = 8;
    // Queries on their way to registers lie where slices will be: rows of 1,040 bytes, so that no two of 8 rows share a bank.
    static constexpr int QUERY_PITCH = DIM * 2 + 16;
    static_assert(SLICES <= WEIGHTS && SLICES * SLICE_BYTES >= MOST_HEADS * QUERY_PITCH && SLICES * SLICE_BYTES % 1024 == 0, "room");
    static constexpr int PIECES_AT = SLICES * SLICE_BYTES, BARRIERS_AT = HOPPER_SHARED - 1280;
    static constexpr int MASKS_AT = BARRIERS_AT + 8 * (2 * PIECES + 4 * WEIGHTS + 6), INVERSES_AT = MASKS_AT + 2 * 4 * 8, FLAGS_AT = INVERSES_AT + GROUP * 4;
    static_assert(FLAGS_AT + sizeof(Flags) <= HOPPER_SHARED, "room");
};

// Bytes of a tile's weights in a block: steps of 32 bytes a head, largest logits and sums; then, not sent, factors.
static constexpr __device__ int weight_pitch(int group) { return (group * (TILE * 2 + 12) + 255) / 256 * 256; }
template <int C> static constexpr __device__ int pieces_for(int group) {
    const int room = Form<C>::BARRIERS_AT - Form<C>::PIECES_AT - Form<C>::WEIGHTS * weight_pitch(group), pieces = room / Form<C>::PIECE_BYTES;
    return pieces < Form<C>::PIECES ? pieces : Form<C>::PIECES;
}
static_assert(pieces_for<16>(Form<16>::MOST_HEADS) == 8 && pieces_for<8>(GROUP) * PIECE >= DIM && pieces_for<4>(GROUP) == 8, "room");
static_assert(pieces_for<3>(GROUP) == 8 && pieces_for<2>(GROUP) == 8, "room");

// What a block knows.
template <int C> struct Block : Task {
    using F = Form<C>;
    int rank;           // in the cluster
    int pieces, pitch;  // places of the ring of pieces; bytes of a place of the ring of weights
    u32 weights;        // where that begins

    __device__ Block(const Table* t, u32 blocks_x) : Task(t, blocks_x, C, (Flags*)(memory + F::FLAGS_AT)) {
        rank = BLOCK_X % C;
        pitch = weight_pitch(group);
        pieces = pieces_for<C>(group);
        weights = shared + F::PIECES_AT + pieces * F::PIECE_BYTES;
    }

    // Barriers.
    __device__ u32 barrier(int i) const { return shared + F::BARRIERS_AT + 8 * i; }
    __device__ u32 piece_full(int i) const { return barrier(i); }  // of the first tile, which is scored as it comes
    __device__ u32 piece_free(int i) const { return barrier(F::PIECES + i); }
    __device__ u32 full(int i) const { return barrier(2 * F::PIECES + i); }                    // a tile's weights and slice are here
    __device__ u32 ready(int i) const { return barrier(2 * F::PIECES + F::WEIGHTS + i); }      // its factors too
    __device__ u32 summed(int i) const { return barrier(2 * F::PIECES + 2 * F::WEIGHTS + i); }
    __device__ u32 weight_free(int i) const { return barrier(2 * F::PIECES + 3 * F::WEIGHTS + i); }  // in the sender: summed by all
    __device__ u32 queries_full() const { return barrier(2 * F::PIECES + 4 * F::WEIGHTS); }
    __device__ u32 queries_taken() const { return barrier(2 * F::PIECES + 4 * F::WEIGHTS + 1); }
    __device__ u32 tile_full(int i) const { return barrier(2 * F::PIECES + 4 * F::WEIGHTS + 4 + i); }  // of the others
    __device__ u32 masks_known(int i) const { return barrier(2 * F::PIECES + 4 * F::WEIGHTS + 2 + i); }

    __device__ u32 piece(int i) const { return shared + F::PIECES_AT + i * F::PIECE_BYTES; }
    __device__ u32 slice(int i) const { return shared + i * F::SLICE_BYTES; }
    __device__ u32 weight(int i) const { return weights + i * pitch; }
    __device__ u32 facts(int i) const { return weight(i) + group * (slots * 2); }  // largest logits, then sums
    __device__ u32 factors(int i) const { return weight(i) + group * (TILE * 2 + 8); }
    // Which slots of an own tile are attended, a bit each: the four warps' that load it.
    __device__ u64* masks(int i) const { return (u64*)(memory + F::MASKS_AT) + i * 4; }
    __device__ float* inverses() const { return (float*)(memory + F::INVERSES_AT); }
    __device__ u32 message() const { return group * (slots * 2 + 8); }  // bytes of a tile's weights
    // What warps that do not sum do at the end: no block leaves while others reach into its memory.
    __device__ void leave() const {
        cluster_arrive();
        cluster_wait();
        if (!suspicious()) return;
        cluster_arrive();
        cluster_wait();
    }
    __device__ int first_column() const { return min(rank * F::COLUMNS, DIM - F::COLUMNS); }
    // What a slot of a tile attends to, if anything.
    __device__ int index(int tile, int slot) const {
        const int j = tile * slots + slot;
        return slot < slots && j < width ? indices[j] : NO_INDEX;
    }
};

// Barriers with their counts, no flag set. Every warp makes some, by one lane: lanes would do so in turn, and the last cluster of a launch often starts when
// the launch before ends.
template <int C> static __device__ __forceinline__ void start(const Block<C>& b) {
    using F = Form<C>;
    if (lane() > 0) return;
    const int i = warp();
    if (i < F::PIECES) {
        barrier_init(b.piece_full(i), 128);
        barrier_init(b.piece_free(i), 128);
    }
    if (i == F::PIECES) {
        *b.flags = {};
        barrier_init(b.queries_full(), 256);
        barrier_init(b.queries_taken(), 128);
    }
    if (i >= BLOCK / WARP - 2) {
        barrier_init(b.tile_full(i & 1), 128);
        barrier_init(b.masks_known(i & 1), 4);
    }
    for (int place = i; place < F::WEIGHTS; place += BLOCK / WARP) {
        // Who loads the slice; who scored the tile, or expects its weights.
        barrier_init(b.full(place), WARP + (place % C == b.rank ? 128 : 1));
        barrier_init(b.ready(place), WARP);
        barrier_init(b.summed(place), SUMMERS);
        barrier_init(b.weight_free(place), C);
        if (place < b.tiles && place % C != b.rank) barrier_expect(b.full(place), b.message());
    }
    barriers_ready();
}
