// Fast sparse attention of 512 features in one launch. A cluster owns a row: C blocks for each of its groups of heads.
//
// What a block owns
//   * every C-th tile of the row's slots: it gathers their cache rows whole, scores them (queries in registers) and sends the weights to the C blocks;
//   * 512 / C of the features: it gathers these of the other tiles too, and sums tile after tile.
// Scores are split by slots and sums by features, so no partial output crosses blocks. Logits, a gathered copy of the cache and partial sums are
// never materialised.
//
// The bits follow from the row's width alone, not from C or the groups: a block alone (sparse_attention_alone_hopper.cu) gives the same. A head's weights in a tile are exp(logit - the tile's largest), in
// bf16; what was summed before is brought to the new tile's unit first. The unit follows the tiles' largest logits, but down by 2^40 at most: a tile
// further below counts as if it were there, which is nothing. The sink joins at the end.
//
// Data checks ride on the logits. Where one of them, a sink or a result is not finite, the cluster's first block looks again when all have written.

// ---- The warps that load: four bring own tiles, four others slices of the other tiles.
//
// What a stage says of its slots (`attended`) is written before attended_known and read before `full` of its weights, which those who sum wait
// for before they arrive at tile_free: so it is free again, though those who score never arrive there themselves.

// Eight lanes bring 128 bytes of a slot, a warp those of four slots at once. A lane has the slots at, at + 16, at + 32 of each tile: so it writes
// all its 16 bytes at one place of the swizzle, and every further piece of 64 features is a constant away.
template <int C> struct Loader {
    static constexpr int SLOTS = TILE / STEP;
    const Block<C>& b;
    int at;          // the lane's first slot of a tile
    u32 to;          // its place in a tile
    const char* from;
    bool invalid;

    __device__ Loader(const Block<C>& b, int column) : b(b), at(lane() / 8 * 4 + warp() % 4), invalid(false) {
        to = at * 128 + ((lane() ^ at) & 7) * 16;
        from = b.kv + column * 2 + lane() % 8 * 16;
    }
    __device__ void read(int tile, int (&index)[SLOTS]) const {
#pragma unroll
        for (int i = 0; i < SLOTS; i++) {
            const int slot = at + i * STEP, j = tile * b.slots + slot;
            index[i] = slot < b.slots && j < b.width ? b.indices[j] : NO_INDEX;
        }
    }
    __device__ bool good(int index) {
        const bool there = index >= 0 && index < b.kv_len;
        invalid |= index != NO_INDEX && !there;
        return there;
    }
    // PIECES of 64 features of its slots, from `piece` on, to a tile or slice; absent slots become zeros.
    template <int PIECES> __device__ void take(u32 place, int piece, const int (&index)[SLOTS]) {
#pragma unroll
        for (int i = 0; i < SLOTS; i++) {
            if (i * STEP >= b.slots) continue;
            const bool there = good(index[i]);
            const char* source = from + (u64)(there ? index[i] : 0) * (DIM * 2) + piece * 128;
#pragma unroll
            for (int k = 0; k < PIECES; k++)
                copy16(place + to + i * (STEP * 128) + (piece + k) * (TILE * 128), source + k * 128, there ? 16 : 0);
        }
    }
};

template <int C> static __device__ __forceinline__ bool load_tiles(const Block<C>& b) {
    using F = Form<C>;
    Loader<C> loader(b, 0);
    int next[Loader<C>::SLOTS];
    loader.read(b.rank, next);
    for (int round = 0, tile = b.rank; tile < b.tiles; round++, tile += C) {
        const int stage = round % F::TILES;
        int index[Loader<C>::SLOTS];
#pragma unroll
        for (int i = 0; i < Loader<C>::SLOTS; i++) index[i] = next[i];
        loader.read(tile + C, next);
        if (round >= F::TILES) barrier_wait(b.tile_free(stage), (round / F::TILES - 1) & 1);
#pragma unroll
        for (int i = 0; i < Loader<C>::SLOTS; i++)
            if (lane() % 8 == 0 && i * STEP < b.slots) b.attended(stage)[loader.at + i * STEP] = loader.good(index[i]);
        __syncwarp();
        if (lane() == 0) barrier_arrive(b.attended_known(stage));
        loader.template take<4>(b.tile(stage), 0, index);
        barrier_arrive_copied(b.tile_full(stage, 0));
        loader.template take<4>(b.tile(stage), 4, index);
        barrier_arrive_copied(b.tile_full(stage, 1));
    }
    return loader.invalid;
}

template <int C> static __device__ __forceinline__ bool load_slices(const Block<C>& b) {
    using F = Form<C>;
    constexpr int AHEAD = 4;  // slices whose indices are on their way
    Loader<C> loader(b, b.first_column());
    auto after = [&](int tile) { return tile + 1 + (tile % C == (b.rank + C - 1) % C); };  // the next that is not this block's
    int later[AHEAD][Loader<C>::SLOTS], far = b.rank == 0;
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        loader.read(far, later[i]);
        far = after(far);
    }
    barrier_wait(b.queries_taken(), 0);  // slices take the staged queries' place
    int place = 0, lap = 0, turn = 0, slice = 0;
#pragma unroll 1
    for (int tile = 0; tile < b.tiles; tile++) {
        if (lap > 0) barrier_wait(b.slice_free(place), (lap - 1) & 1);
        if (turn == b.rank) {
            barrier_arrive(b.full(place));
        } else {
            int index[Loader<C>::SLOTS];
#pragma unroll
            for (int i = 0; i < Loader<C>::SLOTS; i++) {
                index[i] = later[0][i];
#pragma unroll
                for (int j = 1; j < AHEAD; j++) later[j - 1][i] = later[j][i];
            }
            loader.read(far, later[AHEAD - 1]);
            far = after(far);
            loader.template take<F::COLUMNS / 64>(b.slice(slice), 0, index);
            barrier_arrive_copied(b.full(place));
            if (++slice == F::SLICES) slice = 0;
        }
        if (++turn == C) turn = 0;
        if (++place == F::WEIGHTS) place = 0, lap++;
    }
    return loader.invalid;
}

template <int C> static __device__ __forceinline__ void load(const Block<C>& b) {
    using F = Form<C>;
    const bool invalid = threadIdx.x < BLOCK - 128 ? load_tiles(b) : load_slices(b);
    if (invalid) atomicOr(&b.flags->invalid, 1);
    __syncwarp();
    arrive_some<1, F::LOADERS + F::SUMMERS>();
    copies_wait();
    if (b.joined) cluster_wait();
    b.leave();
}

// ---- The warps that score.

// A thread holds the heads h[0] and h[1] = h[0] + 8, and of every 8 columns two.
template <int C> static __device__ __forceinline__ void score(const Block<C>& b) {
    using F = Form<C>;
    const int l = lane(), w = warp(), pair = l % 4 * 2, h[2] = {w * 16 + l / 4, w * 16 + l / 4 + 8};
    u32 q[DIM / 4];
    barrier_wait(b.queries_full(), 0);
    const u32 from = b.shared + F::STAGED_AT + (w * 16 + l % 16) * F::QUERY_PITCH + l / 16 * 16;
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) load_operand(q + 4 * k, from + k * 32);
    __syncwarp();
    if (l == 0) barrier_arrive(b.queries_taken());
    if (b.joined) cluster_wait();  // every block runs and has its barriers
    for (int round = 0, tile = b.rank; tile < b.tiles; round++, tile += C) {
        const int stage = round % F::TILES, place = tile % F::WEIGHTS;
        float x[TILE / 2] = {};
        bool both = false;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (!both) {
                barrier_wait(b.tile_full(stage, half), round / F::TILES & 1);
                both = half == 0 && barrier_reached(b.tile_full(stage, 1), round / F::TILES & 1);
                matrix_sees_shared();
            }
            if (half == 0) matrix_start();
#pragma unroll
            for (int k = half * 16; k < half * 16 + 16; k++) {
                const u64 slots = operand128(b.tile(stage), 16) + further(k / 4 * (TILE * 128) + k % 4 * 32);
                multiply(x, q + 4 * k, slots);
            }
            matrix_commit();
        }
        barrier_wait(b.attended_known(stage), round / F::TILES & 1);
        matrix_wait<0>();
        float largest[2], sum[2];
        screen(x, b.attended(stage), b.scale, largest, sum);
        if (tile >= F::WEIGHTS) barrier_wait(b.weight_free(place), (tile / F::WEIGHTS - 1) & 1);
        if (w * 16 < b.group) {
#pragma unroll
            for (int side = 0; side < 2; side++) {
                const float unit = largest[side] == -F32_INF ? 0.0f : largest[side];
                const u32 at = b.weight(place) + h[side] * 32 + pair * 2;
#pragma unroll
                for (int j = 0; j < TILE / 8; j++) {
                    const float low = exp2_fast((x[4 * j + 2 * side] - unit) * LOG2_E);
                    const float high = exp2_fast((x[4 * j + 2 * side + 1] - unit) * LOG2_E);
                    sum[side] += low + high;
                    if (j * 8 < b.slots && h[side] < b.group)
                        store_shared(at + j / 2 * (b.group * 32) + ((j ^ h[side] / 4) & 1) * 16, narrow2(low, high));
                }
#pragma unroll
                for (int i = 1; i < 4; i *= 2) sum[side] += __shfl_xor_sync(FULL, sum[side], i);
                const u32 facts = b.weight(place) + b.group * (b.slots * 2) + h[side] * 4;
                if (l % 4 == 0 && h[side] < b.group) {
                    store_shared(facts, __float_as_uint(largest[side]));
                    store_shared(facts + b.group * 4, __float_as_uint(sum[side]));
                }
            }
        }
        matrix_sees_shared();
        sync_some<3, 128>();
        if (threadIdx.x == 0) barrier_arrive(b.full(place));
        const int to = w + 4 * l;  // each warp sends to a quarter of the others
        if (to < C && to != b.rank)
            bulk_send(in_block(b.weight(place), b.first + to), b.weight(place), b.message(), in_block(b.full(place), b.first + to));
        __syncwarp();
    }
    b.leave();
}

// ---- The warps that sum.

template <int C> static __device__ __forceinline__ void sum(const Block<C>& b) {
    using F = Form<C>;
    const int l = lane(), w = warp() % 4, h[2] = {w * 16 + l / 4, w * 16 + l / 4 + 8};
    const int column = b.first_column();
    const bool busy = w * 16 < b.group;
    // Products of 256 columns do not fit the registers.
    constexpr int PARTS = F::COLUMNS > 192 ? 2 : 1, EACH = F::COLUMNS / PARTS;
    float o[PARTS][EACH / 2] = {};
    Chain chain[2] = {{-F32_INF, -F32_INF, 0.0f}, {-F32_INF, -F32_INF, 0.0f}};
    float factor[2] = {1.0f, 1.0f};
    float sink[2];
    for (int side = 0; side < 2; side++) sink[side] = b.sinks && h[side] < b.heads ? b.sinks[h[side]] : -F32_MAX;
    if (b.joined) cluster_wait();  // every block runs and has its barriers
    // Where a tile's largest logits and sums of the two heads lie, in the ring's first place; rows without a head look at another's.
    u32 facts[2][2];
#pragma unroll
    for (int side = 0; side < 2; side++) {
        facts[side][0] = b.weight(0) + b.group * (b.slots * 2) + (h[side] & (b.group - 1)) * 4;
        facts[side][1] = facts[side][0] + b.group * 4;
        keep(facts[side][0]);
        keep(facts[side][1]);
    }
    // What the sums of the tile in this place begin with; an own tile was scored here, so the matrix unit has seen it.
    auto look = [&](int place) {
        if (place % C != b.rank) matrix_sees_shared();
        if (!busy) return;
        float fact[2][2];
#pragma unroll
        for (int i = 0; i < 4; i++) fact[i / 2][i % 2] = __uint_as_float(load_shared(facts[i / 2][i % 2] + place * F::WEIGHT_BYTES));
#pragma unroll
        for (int side = 0; side < 2; side++) factor[side] = advance(chain[side], fact[side][0], fact[side][1]);
    };
    // Lower halves of operands in the rings' first places, and a step of weights; the upper halves are constants.
    const u32 weights = (u32)operand32(b.weight(0)), slices = (u32)operand128(b.slice(0), TILE * 128), weight_step = b.group * 2;
    const u32 own_tiles = (u32)operand128(b.tile(0) + column / 64 * (TILE * 128), TILE * 128), message = b.message();
    constexpr u64 WEIGHTS_UPPER = (u64)(256 >> 4 | 3u << 30) << 32, VALUES_UPPER = (u64)(1024 >> 4 | 1u << 30) << 32;
    int stage = 0, tile = 0;
    u32 lap = 0;
    if (b.tiles > 0) {
        barrier_wait(b.full(0), 0);
        look(0);
    }
#pragma unroll 1
    for (; tile < b.tiles; lap ^= 1) {
        // Once round the ring: a place, whose tile it has and where its slice lies are constants.
#pragma unroll
        for (int place = 0; place < F::WEIGHTS; place++) {
            if (tile >= b.tiles) break;
            const int from = place % C;
            const bool own = from == b.rank;
            const u32 values = own ? own_tiles + stage * (F::TILE_BYTES >> 4)
                                   : slices + (place / C * (C - 1) + from) * (F::SLICE_BYTES >> 4) - (from > b.rank ? F::SLICE_BYTES >> 4 : 0);
            if (busy) {
#pragma unroll
                for (int i = 0; i < F::COLUMNS / 2; i++) o[i / (EACH / 2)][i % (EACH / 2)] *= factor[i >> 1 & 1];
            }
            auto step = [&](int k) {
#pragma unroll
                for (int i = 0; i < PARTS; i++)
                    multiply_turned(
                        o[i], WEIGHTS_UPPER | (weights + place * (F::WEIGHT_BYTES >> 4) + k * weight_step),
                        VALUES_UPPER | (values + (k * (STEP * 128) + i * (EACH / 64) * (TILE * 128) >> 4)));
            };
            matrix_start();
            if (b.slots == TILE) {  // a group each, without a branch in it
#pragma unroll
                for (int k = 0; k < TILE / STEP; k++) step(k);
                matrix_commit();
            } else {
                step(0);
                step(1);
                matrix_commit();
            }
            // Under these products, what the next ones begin with, if it is there: nobody waits while he holds what others may wait for.
            const int next = (place + 1) % F::WEIGHTS;
            const u32 parity = next ? lap : lap ^ 1;
            const bool more = tile + 1 < b.tiles, there = more && barrier_reached(b.full(next), parity);
            if (there) look(next);
            matrix_wait<0>();
            const bool again = tile + F::WEIGHTS < b.tiles;  // weights come to this place once more
            if (again && !own && threadIdx.x == 128) barrier_expect(b.full(place), message);
            if (l == 0) {
                if (own) barrier_arrive(b.tile_free(stage));
                if (again) {
                    barrier_arrive(b.slice_free(place));
                    barrier_arrive_there(in_block(b.weight_free(place), b.first + from));
                }
            }
            __syncwarp();
            if (own && ++stage == F::TILES) stage = 0;
            if (more && !there) {
                barrier_wait(b.full(next), parity);
                look(next);
            }
            tile++;
        }
    }
    sync_some<1, F::LOADERS + F::SUMMERS>();  // loaders have seen every index
    float inverse[2];
    u32 check = 0, suspect = 0, words[F::COLUMNS / 4];
#pragma unroll
    for (int side = 0; side < 2; side++) {
        const Chain& c = chain[side];
        const bool here = h[side] < b.heads, empty = c.unit == -F32_INF;
        inverse[side] = empty ? 0.0f : 1.0f / (c.sum + exp2_fast((sink[side] - c.unit) * LOG2_E));
        if (here && (c.sum != c.sum || (!empty && !finite(sink[side])))) suspect |= 1 << side;
    }
#pragma unroll
    for (int side = 0; side < 2; side++) {
        check = 0;
#pragma unroll
        for (int i = 0; i < F::COLUMNS / 8; i++) {
            const float* v = o[i * 4 / (EACH / 2)] + i * 4 % (EACH / 2) + 2 * side;
            const int word = i / 2 * 4 + side * 2 + i % 2;
            words[word] = narrow2(v[0] * inverse[side], v[1] * inverse[side]);
            check2(check, words[word]);
        }
        if (h[side] < b.heads && check & 0x7fff7fff) suspect |= 1 << side;
    }
    if (suspect) suspects(b, suspect, h);
    __syncwarp();
    if (b.joined) cluster_arrive();
    bf16* out = b.out + h[0] * DIM + column;
    const bool here = (l & 2 ? h[1] : h[0]) < b.heads;
    // The last of three blocks has 64 columns in common with the one before.
    const int skip = C == 3 && b.rank == 2 ? 4 : 0;
    if (busy) {
#pragma unroll
        for (int i = 0; i < F::COLUMNS / 16; i++) store_quad(out + i * 16, words + 4 * i, here && i >= skip);
    }
    conclude<F::SUMMERS>(b, (float*)(memory + F::TILES_AT));
}

template <int C> static __device__ __forceinline__ void attend(const Table* t, u32 blocks_x) {
    using F = Form<C>;
    Block<C> b(t, blocks_x);
    const bool active = b.row->active;
    if (active) start(b);
    dependents_may_start();
    __syncthreads();
    if (active && b.joined) cluster_arrive();
    wait_for_predecessors();
    if (!active) return;
    if (threadIdx.x < BLOCK - F::LOADERS) {  // who would only wait brings the queries
#pragma unroll 4
        for (int i = warp(); i < 2 * b.heads; i += (BLOCK - F::LOADERS) / WARP) {
            const int h = i / 2, c = i % 2 * WARP + lane();
            copy16(b.shared + F::STAGED_AT + h * F::QUERY_PITCH + c * 16, b.queries + h * (DIM * 2) + c * 16, 16);
        }
        barrier_arrive_copied(b.queries_full());
    }
    const int who = __shfl_sync(FULL, threadIdx.x / 128, 0);
    if (who > F::SUMMERS / 128) {
        set_registers<REGISTERS, F::LOAD_REGISTERS>();
        load(b);
    } else if (who == 0) {
        set_registers<REGISTERS, F::SCORE_REGISTERS>();
        score(b);
    } else {
        set_registers<REGISTERS, F::SUM_REGISTERS>();
        sum(b);
    }
}

#define FORM(C)                                                                                                            \
    extern "C" __global__ void __launch_bounds__(BLOCK, 1) attention_##C(const Table* t, char* scratch, u32 blocks_x) {     \
        attend<C>(t, blocks_x);                                                                                            \
    }
FORM(2)
FORM(3)
FORM(4)
FORM(8)
