// Fast sparse attention of 512 features where there are many rows: a block owns a row and up to 64 of its heads. The bits are those of
// sparse_attention_hopper.cu.
//
// A tile of slots is gathered whole, once: it is the keys of the scores and the values of the sum. Four warps load tiles into a ring. Eight score, four
// of them every other tile, since products, exponentials and hand-over of a tile take longer than memory does for one; they leave weights in a ring of
// two. Eight sum, 256 features each four. Logits and a gathered copy of the cache are never materialised.
//
// The ring has room for three tiles, so what a tile costs is the time from its first copy to its last product. Hence the order of things: features
// come quarter by quarter, who scores takes turns at the matrix unit, and the sums so far are rescaled while a tile is still weighed.
//
// Data checks ride on the logits. Where one of them, a sink or a result is not finite, the block looks again at its heads when all are
// written. A row's last block to end says how it went.
//
// Every lane arrives at a barrier, though one of a warp would do: it costs nothing, and racecheck can follow.

// ---- The warps that load.

// Eight lanes bring 128 bytes of a slot, a warp those of four slots at once. A lane has the slots at, at + 16, at + 32 of each tile: so it writes
// all its 16 bytes at one place of the swizzle, and every further piece of 64 features is a constant away.
struct Loader {
    static constexpr int SLOTS = TILE / STEP;
    const Block& b;
    int at;  // the lane's first slot of a tile
    u32 to;  // its place in a tile
    const char* from;
    bool invalid;

    __device__ Loader(const Block& b) : b(b), at(lane() / 8 * 4 + warp() % 4), invalid(false) {
        to = at / 8 * EIGHT_SLOTS + at % 8 * 128 + ((lane() ^ at) & 7) * 16;
        from = b.kv + lane() % 8 * 16;
    }
    __device__ void read(int tile, int (&index)[SLOTS]) const {
#pragma unroll
        for (int i = 0; i < SLOTS; i++) {
            const int slot = at + i * STEP, j = tile * b.slots + slot;
            index[i] = slot < b.slots && j < b.width ? b.indices[j] : NO_INDEX;
        }
    }
    __device__ bool good(int index) {
        const bool there = b.there(index);
        invalid |= index != NO_INDEX && !there;
        return there;
    }
    // A quarter of its slots' features, two pieces of 64; absent slots become zeros.
    __device__ void take(u32 tile, int quarter, const int (&index)[SLOTS]) {
#pragma unroll
        for (int i = 0; i < SLOTS; i++) {
            if (i * STEP >= b.slots) continue;
            const bool there = good(index[i]);
            const char* source = from + (u64)(there ? index[i] : 0) * SLOT_BYTES;
#pragma unroll
            for (int k = 2 * quarter; k < 2 * quarter + 2; k++)
                copy16_alone(tile + to + i * (STEP * SLOT_BYTES) + k * 1024, source + k * 128, there ? 16 : 0);
        }
    }
};

// What a stage says of its slots (`attended`) is written before attended_known and read before weight_full, which those who sum wait for before they
// arrive at tile_free: so it is free again, though those who score never arrive there themselves.
static __device__ __forceinline__ void load(const Block& b) {
    constexpr int AHEAD = 4;  // tiles whose indices are on their way
    Loader loader(b);
    int later[AHEAD][Loader::SLOTS];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) loader.read(i, later[i]);
    Place stage;
#pragma unroll 1
    for (int first = 0; first < b.tiles; first += AHEAD) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int tile = first + i;
            if (tile >= b.tiles) break;
            if (tile >= b.stages) barrier_wait(b.tile_free(stage.at), stage.lap ^ 1);
            const int(&index)[Loader::SLOTS] = later[i];
#pragma unroll
            for (int k = 0; k < Loader::SLOTS; k++)
                if (lane() % 8 == 0 && k * STEP < b.slots) b.attended(stage.at)[loader.at + k * STEP] = loader.good(index[k]);
            barrier_arrive(b.attended_known(stage.at));
#pragma unroll
            for (int quarter = 0; quarter < 4; quarter++) {
                loader.take(b.tile(stage.at), quarter, index);
                barrier_arrive_copied(b.tile_full(stage.at, quarter));
            }
            loader.read(tile + AHEAD, later[i]);
            stage.next(b.stages);
        }
    }
    if (loader.invalid) atomicOr(&b.flags->invalid, 1);
    __syncwarp();
    arrive_some<1, LOADERS + SUMMERS>();
    copies_wait();
}

// ---- The warps that score.

// Whether all of a tile's slots are attended.
template <int SLOTS> static __device__ __forceinline__ bool all_attended(const unsigned char* attended) {
    const u32* words = (const u32*)attended;
    return __all_sync(FULL, words[lane() % (SLOTS / 4)] == 0x01010101u);
}

// Logits of a tile of 2 HALF slots from dot products, -inf where a slot is absent; their largest, and NaN instead of 0 where one that is there is not
// finite.
template <int HALF>
static __device__ __forceinline__ void screen(
    float (&x)[HALF], const unsigned char* attended, bool all, float scale, float (&largest)[2], float (&check)[2]) {
    largest[0] = largest[1] = -F32_INF;
    check[0] = check[1] = 0.0f;
    if (all) {
#pragma unroll
        for (int i = 0; i < HALF; i++) {
            x[i] = __fmul_rn(x[i], scale);
            check[i >> 1 & 1] = __fmaf_rn(x[i], 0.0f, check[i >> 1 & 1]);
            largest[i >> 1 & 1] = fmaxf(largest[i >> 1 & 1], x[i]);
        }
    } else {
#pragma unroll
        for (int j = 0; j < HALF / 4; j++) {
            const u32 both = *(const unsigned short*)(attended + j * 8 + (lane() & 3) * 2);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const bool there = both >> (i & 1) * 8 & 1;
                const float logit = __fmul_rn(x[4 * j + i], scale);
                check[i >> 1] = __fmaf_rn(there ? logit : 0.0f, 0.0f, check[i >> 1]);
                x[4 * j + i] = there ? logit : -F32_INF;
                largest[i >> 1] = fmaxf(largest[i >> 1], x[4 * j + i]);
            }
        }
    }
#pragma unroll
    for (int side = 0; side < 2; side++)
#pragma unroll
        for (int i = 1; i < 4; i *= 2) largest[side] = fmaxf(largest[side], __shfl_xor_sync(FULL, largest[side], i));
}

// Weights of a tile's logits relative to its largest, and their sum. A thread holds the heads h and h + 8, and of every 8 columns two.
template <int SLOTS> static __device__ __forceinline__ void weigh(u32 weight, int h, float (&x)[SLOTS / 2], const float (&largest)[2], float (&sum)[2]) {
    const float unit[2] = {largest[0] == -F32_INF ? 0.0f : largest[0], largest[1] == -F32_INF ? 0.0f : largest[1]};
#pragma unroll
    for (int i = 0; i < SLOTS / 2; i++) x[i] = exp2_fast((x[i] - unit[i >> 1 & 1]) * LOG2_E);
#pragma unroll
    for (int j = 0; j < SLOTS / 8; j++)
#pragma unroll
        for (int side = 0; side < 2; side++) {
            const float low = x[4 * j + 2 * side], high = x[4 * j + 2 * side + 1];
            const int head = h + side * 8;
            sum[side] += low + high;
            store_shared(weight + head * 32 + lane() % 4 * 4 + j / 2 * WEIGHT_STEP + ((j ^ head / 4) & 1) * 16, narrow2(low, high));
        }
#pragma unroll
    for (int i = 1; i < 4; i *= 2)
#pragma unroll
        for (int side = 0; side < 2; side++) sum[side] += __shfl_xor_sync(FULL, sum[side], i);
    if (lane() % 4 == 0)
        for (int side = 0; side < 2; side++) store_shared(weight + FACTS_AT + GROUP * 4 + (h + side * 8) * 4, __float_as_uint(sum[side]));
}

// Four warps' tiles: WHICH, WHICH + 2 and so on, of SLOTS slots each. They take turns with the other four at the matrix unit.
template <int SLOTS, int WHICH> static __device__ __forceinline__ void score(const Block& b) {
    barrier_wait(b.queries_full(), 0);
    Place stage;
    if (WHICH) stage.next(b.stages);
    u32 lap = 0;
    const int h = warp() % 4 * 16 + lane() / 4;
#pragma unroll 1
    for (int tile = WHICH; tile < b.tiles; tile += 2) {
        const u64 queries = operand128(b.shared, 16), slots = operand128(b.tile(stage.at), 16, EIGHT_SLOTS);
        float x[SLOTS / 2] = {}, largest[2], sum[2];
#pragma unroll
        for (int quarter = 0; quarter < 4; quarter++) {
            barrier_wait(b.tile_full(stage.at, quarter), stage.lap);
            if (quarter == 0 && tile > 0) sync_some<TURN + WHICH, SCORERS>();
            matrix_sees_shared();
            if (quarter == 0) matrix_start();
#pragma unroll
            for (int k = quarter * 8; k < quarter * 8 + 8; k++)
                multiply(x, queries + further(k / 4 * QUERY_PIECE + k % 4 * 32), slots + further(k / 4 * 1024 + k % 4 * 32));
            matrix_commit();
        }
        if (tile + 1 < b.tiles) arrive_some<TURN + 1 - WHICH, SCORERS>();
        barrier_wait(b.attended_known(stage.at), stage.lap);
        const bool all = all_attended<SLOTS>(b.attended(stage.at));
        const u32 weight = b.weight(WHICH);
        if (tile >= WEIGHTS) barrier_wait(b.weight_free(WHICH), lap ^ 1);
        matrix_wait<0>();
        screen(x, b.attended(stage.at), all, b.scale, largest, sum);
        if (lane() % 4 == 0)
            for (int side = 0; side < 2; side++) store_shared(weight + FACTS_AT + (h + side * 8) * 4, __float_as_uint(largest[side]));
        barrier_arrive(b.largest_known(WHICH));
        weigh<SLOTS>(weight, h, x, largest, sum);
        matrix_sees_shared();
        barrier_arrive(b.weight_full(WHICH));
        lap ^= 1;
        stage.next(b.stages);
        stage.next(b.stages);
    }
}

// ---- The warps that sum.

static __device__ __forceinline__ void sum(const Block& b) {
    const int l = lane(), column = (warp() / 4 - SCORERS / 128) * COLUMNS, w = warp() % 4, h[2] = {w * 16 + l / 4, w * 16 + l / 4 + 8};
    const bool busy = w * 16 < b.group;
    // Products of 256 columns do not fit the registers.
    constexpr int PARTS = 2, EACH = COLUMNS / PARTS;
    float o[PARTS][EACH / 2] = {};
    Chain chain[2] = {{-F32_INF, -F32_INF, 0.0f}, {-F32_INF, -F32_INF, 0.0f}};
    float sink[2];
    for (int side = 0; side < 2; side++) sink[side] = b.sinks && h[side] < b.heads ? b.sinks[h[side]] : -F32_MAX;
    // Lower halves of operands in the rings' first places; the upper halves are constants.
    const u32 weights = (u32)operand32(b.weight(0)), tiles = (u32)operand128(b.tile(0) + column / 64 * 1024, 1024, 0);
    constexpr u64 WEIGHTS_UPPER = (u64)(256 >> 4 | 3u << 30) << 32, VALUES_UPPER = (u64)(EIGHT_SLOTS >> 4 | 1u << 30) << 32;
    Place stage, place;
#pragma unroll 1
    for (int tile = 0; tile < b.tiles; tile++) {
        const u32 values = tiles + stage.at * (b.stage_bytes() >> 4), weight = weights + place.at * (WEIGHT_BYTES >> 4);
        const u32 facts = b.weight(place.at) + FACTS_AT + h[0] * 4;
        // The sums so far are brought to the tile's unit while it is weighed.
        barrier_wait(b.largest_known(place.at), place.lap);
        float factor[2] = {1.0f, 1.0f};
        if (busy) {
#pragma unroll
            for (int side = 0; side < 2; side++) factor[side] = advance(chain[side], __uint_as_float(load_shared(facts + side * 32)));
#pragma unroll
            for (int i = 0; i < COLUMNS / 2; i++) o[i / (EACH / 2)][i % (EACH / 2)] *= factor[i >> 1 & 1];
        }
        barrier_wait(b.weight_full(place.at), place.lap);
        auto step = [&](int k) {
#pragma unroll
            for (int i = 0; i < PARTS; i++)
                multiply_turned(
                    o[i], WEIGHTS_UPPER | (weight + (k * WEIGHT_STEP >> 4)),
                    VALUES_UPPER | (values + (k * (STEP * SLOT_BYTES) + i * (EACH / 64) * 1024 >> 4)));
        };
        matrix_start();
        if (b.slots == TILE) {  // a group each, without a branch in it
#pragma unroll
            for (int k = 0; k < TILE / STEP; k++) step(k);
            matrix_commit();
        } else {
#pragma unroll
            for (int k = 0; k < NARROW_TILE / STEP; k++) step(k);
            matrix_commit();
        }
#pragma unroll
        for (int side = 0; side < 2; side++)
            chain[side].sum = __fmaf_rn(chain[side].sum, factor[side], __uint_as_float(load_shared(facts + GROUP * 4 + side * 32)));
        matrix_wait<0>();
        barrier_arrive(b.tile_free(stage.at));
        barrier_arrive(b.weight_free(place.at));
        stage.next(b.stages);
        place.next(WEIGHTS);
    }
    sync_some<1, LOADERS + SUMMERS>();  // loaders have seen every index
    barrier_wait(b.queries_full(), 0);  // whose place the outputs take on their way
    unsigned char* rows = memory + (warp() - SCORERS / WARP) * (16 * OUT_PITCH);
    u32 suspect = 0;
    // Of a warp's heads eight after eight, and of their columns part after part: turned in shared memory, so that a store has columns side by side.
    constexpr int TURNED = 64, LANES = TURNED / 8;  // columns at a time, lanes that store a head's
#pragma unroll
    for (int side = 0; side < 2; side++) {
        const Chain& c = chain[side];
        const bool here = h[side] < b.heads, empty = c.unit == -F32_INF;
        const float inverse = empty ? 0.0f : 1.0f / (c.sum + exp2_fast((sink[side] - c.unit) * LOG2_E));
        u32 check = 0;
#pragma unroll
        for (int first = 0; first < COLUMNS; first += TURNED) {
#pragma unroll
            for (int i = first / 8; i < (first + TURNED) / 8; i++) {
                const float* v = o[i * 4 / (EACH / 2)] + i * 4 % (EACH / 2) + 2 * side;
                const u32 both = narrow2(v[0] * inverse, v[1] * inverse);
                check2(check, both);
                *(u32*)(rows + (side * 8 + l / 4) * OUT_PITCH + i * 16 + l % 4 * 4) = both;
            }
            __syncwarp();
#pragma unroll
            for (int i = side * 8 + l / LANES; i < side * 8 + 8; i += WARP / LANES) {
                const int at = first + l % LANES * 8, head = w * 16 + i;
                if (head < b.heads) *(uint4*)(b.out + head * DIM + column + at) = *(const uint4*)(rows + i * OUT_PITCH + at * 2);
            }
        }
        if (here && (check & 0x7fff7fff || c.sum != c.sum || (!empty && !finite(sink[side])))) suspect |= 1 << side;
    }
    for (int side = 0; side < 2; side++) {
        const int head = b.head + h[side];
        if (suspect >> side & 1) atomicOr(&b.flags->suspect[head / 32], 1u << head % 32);
    }
    sync_some<LOOK, SUMMERS>();
    conclude<SUMMERS, SCORERS>(b, (float*)(memory + TILES_AT));
}

extern "C" __global__ void __launch_bounds__(BLOCK, 1) attention_alone(const Table* t, char* scratch, u32 blocks_x) {
    Block b(t, blocks_x);
    const bool active = b.row->active;
    start(b);
    dependents_may_start();
    __syncthreads();
    wait_for_predecessors();
    if (!active) return;
    if (threadIdx.x < BLOCK - LOADERS) {  // who would only wait brings the queries
#pragma unroll 4
        for (int i = warp(); i < 2 * b.heads; i += (BLOCK - LOADERS) / WARP) {
            const int h = i / 2, c = i % 2 * WARP + lane();
            copy16(b.shared + c / 8 * QUERY_PIECE + h * 128 + ((c ^ h) & 7) * 16, b.queries + h * SLOT_BYTES + c * 16);
        }
        barrier_arrive_copied(b.queries_full());
    }
    const int who = __shfl_sync(FULL, threadIdx.x / 128, 0);
    if (who >= (SCORERS + SUMMERS) / 128) {
        set_registers<REGISTERS, LOAD_REGISTERS>();
        load(b);
    } else if (who < SCORERS / 128) {
        set_registers<REGISTERS, SCORE_REGISTERS>();
        if (b.slots == TILE) who == 0 ? score<TILE, 0>(b) : score<TILE, 1>(b);
        else who == 0 ? score<NARROW_TILE, 0>(b) : score<NARROW_TILE, 1>(b);
    } else {
        set_registers<REGISTERS, SUM_REGISTERS>();
        sum(b);
    }
}
