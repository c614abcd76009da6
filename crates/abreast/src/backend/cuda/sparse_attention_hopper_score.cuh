// ---- The warps that score.

// Logits of a tile from dot products, -inf where a slot is absent; their largest, and NaN instead of 0 where one that is there is not finite. `there`: a
// bit a slot. With ALL, the first so many slots are there, and no others.
template <int ALL>
static __device__ __forceinline__ void screen(float (&x)[TILE / 2], u64 there, float scale, float (&largest)[2], float (&check)[2]) {
    largest[0] = largest[1] = -F32_INF;
    check[0] = check[1] = 0.0f;
    there >>= (lane() & 3) * 2;
#pragma unroll
    for (int j = 0; j < TILE / 8; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const bool is = ALL ? j * 8 < ALL : there >> (8 * j + (i & 1)) & 1;
            const float logit = __fmul_rn(x[4 * j + i], scale);
            if (is) check[i >> 1] = __fmaf_rn(logit, 0.0f, check[i >> 1]);
            x[4 * j + i] = is ? logit : -F32_INF;
            largest[i >> 1] = fmaxf(largest[i >> 1], x[4 * j + i]);
        }
    }
}

// A thread holds the heads h[0] and h[1] = h[0] + 8, and of every 8 columns two.
template <int C> static __device__ __forceinline__ void score(const Block<C>& b) {
    using F = Form<C>;
    const int l = lane(), w = warp(), pair = l % 4 * 2, h[2] = {w * 16 + l / 4, w * 16 + l / 4 + 8};
    u32 q[DIM / 4];
    barrier_wait(b.queries_full(), 0);
    const u32 from = b.shared + (w * 16 + l % 16 & b.group - 1) * F::QUERY_PITCH + l / 16 * 16;
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) load_operand(q + 4 * k, from + k * 32);
    barrier_arrive(b.queries_taken());
    cluster_wait();  // every block runs and has its barriers
    int first = 0;   // the tile's first piece
#pragma unroll 1
    for (int tile = b.rank, round = 0; tile < b.tiles; tile += C, round++) {
        const int place = tile % F::WEIGHTS;
        float x[TILE / 2] = {};
        auto at = [&](int k) { return first + k < b.pieces ? first + k : first + k - b.pieces; };
        if (round > 0) barrier_wait(b.tile_full(round & 1), (round - 1) / 2 & 1);
#pragma unroll
        for (int k = 0; k < DIM / PIECE; k++) {
            if (round == 0) barrier_wait(b.piece_full(k), 0);
            if (round == 0 || k == 0) matrix_sees_shared();
            if (k == 0) matrix_start();
            const u64 slots = operand128(b.piece(at(k)), 16);
#pragma unroll
            for (int i = 0; i < PIECE / 16; i++) multiply(x, q + 4 * (k * (PIECE / 16) + i), slots + further(i / 4 * (TILE * 128) + i % 4 * 32));
            matrix_commit();
        }
        barrier_wait(b.masks_known(round & 1), round / 2 & 1);
        const u64* masks = b.masks(round & 1);
        const u64 there = masks[0] | masks[1] | masks[2] | masks[3];
        matrix_wait<0>();
        for (int k = 0; k < DIM / PIECE; k++) {
            barrier_arrive(b.piece_free(first));
            if (++first == b.pieces) first = 0;
        }
        float largest[2], sum[2];
        if (there == (1ull << TILE) - 1) screen<TILE>(x, there, b.scale, largest, sum);
        else if (there == (1ull << NARROW_TILE) - 1 && b.slots == NARROW_TILE) screen<NARROW_TILE>(x, there, b.scale, largest, sum);
        else screen<0>(x, there, b.scale, largest, sum);
#pragma unroll
        for (int side = 0; side < 2; side++)
#pragma unroll
            for (int i = 1; i < 4; i *= 2) largest[side] = fmaxf(largest[side], __shfl_xor_sync(FULL, largest[side], i));
#pragma unroll
        for (int i = 0; i < TILE / 2; i++) {
            const float most = largest[i >> 1 & 1], unit = most == -F32_INF ? 0.0f : most;
            x[i] = exp2_fast((x[i] - unit) * LOG2_E);
        }
        if (tile >= F::WEIGHTS) barrier_wait(b.weight_free(place), (tile / F::WEIGHTS - 1) & 1);
        const u32 even = b.weight(place) + h[0] * 32 + pair * 2 + (h[0] / 4 & 1) * 16, facts = b.facts(place) + h[0] * 4;
        const bool here[2] = {h[0] < b.group, h[1] < b.group};
#pragma unroll
        for (int j = 0; j < TILE / 8; j++) {
            const u32 to = (j & 1 ? even ^ 16 : even) + j / 2 * (b.group * 32);
#pragma unroll
            for (int side = 0; side < 2; side++) {
                const float low = x[4 * j + 2 * side], high = x[4 * j + 2 * side + 1];
                sum[side] += low + high;
                store_shared_if(here[side] && j * 8 < b.slots, to + side * 256, narrow2(low, high));
            }
        }
#pragma unroll
        for (int i = 1; i < 4; i *= 2)
#pragma unroll
            for (int side = 0; side < 2; side++) sum[side] += __shfl_xor_sync(FULL, sum[side], i);
#pragma unroll
        for (int side = 0; side < 2; side++) {
            store_shared_if(l % 4 == 0 && here[side], facts + side * 32, __float_as_uint(largest[side]));
            store_shared_if(l % 4 == 0 && here[side], facts + side * 32 + b.group * 4, __float_as_uint(sum[side]));
        }
        matrix_sees_shared();
        sync_some<3, 128>();
        barrier_arrive(b.full(place));
        const int to = w + 4 * l;  // each warp sends to a quarter of the others
        if (to < C && to != b.rank)
            bulk_send(in_block(b.weight(place), to), b.weight(place), b.message(), in_block(b.full(place), to));
        __syncwarp();
    }
    b.leave();
}
