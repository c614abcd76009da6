// ---- The warps that load: four bring own tiles, three slices of all tiles.

// Eight lanes bring 128 bytes of a slot, a warp those of four slots at once; absent slots become zeros.
template <int C> static __device__ __forceinline__ void load_tiles(const Block<C>& b) {
    using F = Form<C>;
    constexpr int SLOTS = TILE / STEP;  // of a lane: they are 16 apart, so that they lie at one place of the swizzle
    const int w = warp() % 4, at = lane() / 8 * 4 + w;
    const u32 to = at * 128 + ((lane() ^ at) & 7) * 16;
    const char* from = b.kv + lane() % 8 * 16;
    keep(from);
    int now[SLOTS], next[SLOTS], place = 0, lap = 0;
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        now[i] = b.index(b.rank, at + i * STEP);
        next[i] = b.index(b.rank + C, at + i * STEP);
    }
#pragma unroll 1
    for (int tile = b.rank, round = 0; tile < b.tiles; tile += C, round++) {
        const char* source[SLOTS];
        bool there[SLOTS];
#pragma unroll
        for (int i = 0; i < SLOTS; i++) {
            there[i] = b.there(now[i]);
            source[i] = from + (u64)(u32)(there[i] ? now[i] : 0) * (DIM * 2);
        }
#pragma unroll
        for (int k = 0; k < DIM / PIECE; k++) {
            if (lap > 0) barrier_wait(b.piece_free(place), (lap - 1) & 1);
#pragma unroll
            for (int i = 0; i < SLOTS; i++) {
                if (i * STEP >= b.slots) continue;
#pragma unroll
                for (int half = 0; half < 2; half++)
                    copy16(b.piece(place) + to + i * (STEP * 128) + half * (TILE * 128), source[i] + k * (PIECE * 2) + half * 128, there[i] ? 16 : 0);
            }
            if (round == 0) barrier_arrive_copied(b.piece_full(k));
            if (++place == b.pieces) place = 0, lap++;
        }
        if (round > 0) barrier_arrive_copied(b.tile_full(round & 1));
        // Whoever scored the tile before last has read its masks: its pieces were free.
        u64 mask = 0;
#pragma unroll
        for (int i = 0; i < SLOTS; i++) {  // a bit of every eight lanes, to every fourth place
            u32 four = __ballot_sync(FULL, there[i]) & 0x01010101;
            four = (four | four >> 4) & 0x00110011;
            mask |= (u64)((four | four >> 8) & 0x1111) << (w + i * STEP);
        }
        if (lane() == 0) {
            b.masks(round & 1)[w] = mask;
            barrier_arrive(b.masks_known(round & 1));
        }
#pragma unroll
        for (int i = 0; i < SLOTS; i++) {
            now[i] = next[i];
            next[i] = b.index(tile + 2 * C, at + i * STEP);
        }
    }
}

// Each of these warps brings every third tile's slice, a lane knows the indices of two of its slots. They see every index.
template <int C> static __device__ __forceinline__ void load_slices(const Block<C>& b) {
    using F = Form<C>;
    constexpr int LANES = F::SLICE_ROW / 16, ROWS = WARP / LANES;  // of a row; that a warp brings at once
    const int l = lane(), row = l / LANES;
    const u32 to = row * F::SLICE_ROW + (LANES == 8 ? l ^ row : l ^ row / 2) % LANES * 16;
    const char* from = b.kv + b.first_column() * 2 + l % LANES * 16;
    keep(from);
    bool invalid = false;
    int tile = warp() % 4, next[2] = {b.index(tile, l), b.index(tile, l + WARP)};
    barrier_wait(b.queries_taken(), 0);  // slices take the staged queries' place
    cluster_wait();                      // every block runs and has its barriers
#pragma unroll 1
    for (; tile < b.tiles; tile += SLICERS) {
        const int place = tile % F::WEIGHTS, before = tile - F::SLICES, done = before % F::WEIGHTS, sender = before % C;
        int index[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            index[i] = b.there(next[i]) ? next[i] : NO_INDEX;
            invalid |= next[i] != index[i];
            next[i] = b.index(tile + SLICERS, l + i * WARP);
        }
        if (before >= 0) {
            // That tile is summed: its slice's place is free, and its weights' place for the block that sends next.
            barrier_wait(b.summed(done), before / F::WEIGHTS & 1);
            if (l == 0 && before + F::WEIGHTS < b.tiles) {
                if (sender != b.rank) barrier_expect(b.full(done), b.message());
                barrier_arrive_there(in_block(b.weight_free(done), sender));
            }
        }
        const u32 slice = b.slice(tile % F::SLICES) + to;
#pragma unroll
        for (int i = 0; i < TILE / ROWS; i++) {  // slots 4 apart differ in the third bit of their swizzle, slots 8 apart in none
            if (i * ROWS >= b.slots) continue;
            const int which = __shfl_sync(FULL, index[i / LANES], i % LANES * ROWS + row);
            const char* source = from + (u64)(u32)(which == NO_INDEX ? 0 : which) * (DIM * 2);
#pragma unroll
            for (int k = 0; k < F::COLUMNS * 2 / F::SLICE_ROW; k++)
                copy16((ROWS == 4 && i & 1 ? slice ^ 64 : slice) + i * (ROWS * F::SLICE_ROW) + k * (TILE * 128), source + k * 128,
                       which == NO_INDEX ? 0 : 16);
        }
        barrier_arrive_copied(b.full(place));
    }
    if (invalid) atomicOr(&b.flags->invalid, 1);
}
