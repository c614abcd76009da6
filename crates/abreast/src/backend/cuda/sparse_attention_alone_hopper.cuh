// What a block of sparse_attention_alone_hopper.cu has.

// Threads, in this order, and their registers.
#define SCORERS 256
#define SUMMERS 256
#define LOADERS 128
#define BLOCK (SCORERS + SUMMERS + LOADERS)
#define REGISTERS 96  // at first
#define SCORE_REGISTERS 64
#define SUM_REGISTERS 160
#define LOAD_REGISTERS 32
#define COLUMNS 256  // features of 4 warps that sum
#define TURN 3       // the first of two named barriers: whose turn it is at the matrix unit

// Shared memory. Queries: 8 pieces of 64 features, rows of 128 bytes. Tiles: 8 slots after 8 slots, of each such pieces of 1,024 bytes; so a tile of
// any number of slots is one piece of the ring. Weights, of either four warps that score: steps of 32 bytes a head, then the heads' largest logits and
// sums.
#define SLOT_BYTES (DIM * 2)
#define EIGHT_SLOTS (8 * SLOT_BYTES)
#define QUERY_PIECE (GROUP * 128)
#define OUT_PITCH (COLUMNS * 2 + 16)  // of outputs, in the queries' place when these are done with: rows in other banks
#define RING 144  // slots
#define WEIGHTS 2  // tiles
#define WEIGHT_STEP (GROUP * 32)
#define FACTS_AT (TILE / STEP * WEIGHT_STEP)
#define WEIGHT_BYTES (FACTS_AT + 2 * GROUP * 4)
#define MOST_STAGES (RING / NARROW_TILE)  // of tiles
#define TILES_AT (SUMMERS / WARP * 16 * OUT_PITCH)
#define WEIGHTS_AT (TILES_AT + RING * SLOT_BYTES)
#define BARRIERS_AT (WEIGHTS_AT + WEIGHTS * WEIGHT_BYTES)
#define ATTENDED_AT (BARRIERS_AT + 8 * (6 * MOST_STAGES + 3 * WEIGHTS + 1))
#define FLAGS_AT ((ATTENDED_AT + MOST_STAGES * TILE + 7) / 8 * 8)

static_assert(TILES_AT >= GROUP * SLOT_BYTES && TILES_AT % 1024 == 0 && FLAGS_AT + sizeof(Flags) <= HOPPER_SHARED, "room");
static_assert(SCORERS * SCORE_REGISTERS + SUMMERS * SUM_REGISTERS + LOADERS * LOAD_REGISTERS <= BLOCK * REGISTERS, "registers");

struct Block : Task {
    int stages;

    __device__ Block(const Table* t, u32 blocks_x) : Task(t, blocks_x, 1, (Flags*)(memory + FLAGS_AT)) { stages = RING / slots; }

    __device__ u32 barrier(int i) const { return shared + BARRIERS_AT + 8 * i; }
    __device__ u32 tile_full(int stage, int quarter) const { return barrier(4 * stage + quarter); }  // by features
    __device__ u32 tile_free(int stage) const { return barrier(4 * MOST_STAGES + stage); }
    __device__ u32 attended_known(int stage) const { return barrier(5 * MOST_STAGES + stage); }
    __device__ u32 weight_full(int place) const { return barrier(6 * MOST_STAGES + place); }
    __device__ u32 weight_free(int place) const { return barrier(6 * MOST_STAGES + WEIGHTS + place); }
    __device__ u32 largest_known(int place) const { return barrier(6 * MOST_STAGES + 2 * WEIGHTS + place); }
    __device__ u32 queries_full() const { return barrier(6 * MOST_STAGES + 3 * WEIGHTS); }

    __device__ u32 stage_bytes() const { return slots * SLOT_BYTES; }
    __device__ u32 tile(int stage) const { return shared + TILES_AT + stage * stage_bytes(); }
    __device__ u32 weight(int place) const { return shared + WEIGHTS_AT + place * WEIGHT_BYTES; }
    __device__ unsigned char* attended(int stage) const { return memory + ATTENDED_AT + stage * TILE; }
};

// Goes round a ring.
struct Place {
    int at = 0;
    u32 lap = 0;
    __device__ void next(int places) {
        if (++at == places) at = 0, lap ^= 1;
    }
};

// Barriers with their counts, no flag set.
static __device__ __forceinline__ void start(const Block& b) {
    if (threadIdx.x == 0) {
        *b.flags = {};
        for (int i = 0; i < MOST_STAGES; i++) {
            for (int k = 0; k < 4; k++) barrier_init(b.tile_full(i, k), LOADERS);
            barrier_init(b.tile_free(i), SUMMERS);
            barrier_init(b.attended_known(i), LOADERS);
        }
        for (int i = 0; i < WEIGHTS; i++) {
            barrier_init(b.weight_full(i), SCORERS / WEIGHTS);
            barrier_init(b.weight_free(i), SUMMERS);
            barrier_init(b.largest_known(i), SCORERS / WEIGHTS);
        }
        barrier_init(b.queries_full(), BLOCK - LOADERS);
        barriers_ready();
    }
}

