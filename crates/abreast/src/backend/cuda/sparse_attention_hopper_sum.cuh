// ---- The warp that keeps the chains: a lane those of two heads.
template <int C> static __device__ __forceinline__ void keep_chains(const Block<C>& b) {
    using F = Form<C>;
    Chain chain[2] = {{-F32_INF, -F32_INF, 0.0f}, {-F32_INF, -F32_INF, 0.0f}};
    float sink[2];
    for (int side = 0; side < 2; side++) {
        const int h = lane() + side * WARP;
        sink[side] = b.sinks && h < b.heads ? b.sinks[h] : -F32_MAX;
    }
    cluster_wait();
    int place = 0, lap = 0;
#pragma unroll 1
    for (int tile = 0; tile < b.tiles; tile++) {
        barrier_wait(b.full(place), lap);
        float largest[2], sum[2], factor[2];
#pragma unroll
        for (int side = 0; side < 2; side++) {  // a lane without a head looks at another's
            const u32 facts = b.facts(place) + (lane() + side * WARP & b.group - 1) * 4;
            largest[side] = __uint_as_float(load_shared(facts));
            sum[side] = __uint_as_float(load_shared(facts + b.group * 4));
        }
        matrix_sees_shared();  // slices; who scored has seen to the weights
#pragma unroll
        for (int side = 0; side < 2; side++) factor[side] = advance(chain[side], largest[side], sum[side]);
#pragma unroll
        for (int side = 0; side < 2; side++)
            if (lane() + side * WARP < b.group) store_shared(b.factors(place) + (lane() + side * WARP) * 4, __float_as_uint(factor[side]));
        barrier_arrive(b.ready(place));
        if (++place == F::WEIGHTS) place = 0, lap ^= 1;
    }
    // A head whose sum or sink is not finite makes its results NaN, which is noticed.
#pragma unroll
    for (int side = 0; side < 2; side++) {
        const Chain& c = chain[side];
        const bool empty = c.unit == -F32_INF, bad = c.sum != c.sum || (!empty && !finite(sink[side]));
        const float all = c.sum + exp2_fast((sink[side] - c.unit) * LOG2_E);
        b.inverses()[lane() + side * WARP] = bad ? F32_NAN : empty ? 0.0f : 1.0f / all;
    }
}

// ---- The warps that sum.

// A warp's 16 heads of results, turned in shared memory, where slices were, so that a store has whole rows. The last of three blocks has 64 columns
// in common with the one before.
template <int C, int WORDS> static __device__ __forceinline__ void store_rows(const Block<C>& b, const u32 (&words)[WORDS]) {
    constexpr int COLUMNS = Form<C>::COLUMNS, PITCH = COLUMNS * 2 + 16, EACH = COLUMNS / 8;
    const int l = lane(), first = warp() % 4 * 16, skip = C == 3 && b.rank == 2 ? 8 : 0;
    unsigned char* rows = memory + first * PITCH;
#pragma unroll
    for (int i = 0; i < COLUMNS / 4; i++)
        *(u32*)(rows + (l / 4 + (i & 2) * 4) * PITCH + (i / 4 * 16 + i % 2 * 8 + l % 4 * 2) * 2) = words[i];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < COLUMNS / 16; i++) {
        const int row = (i * WARP + l) / EACH, piece = (i * WARP + l) % EACH;
        if (first + row < b.heads && piece >= skip)
            *(uint4*)(b.out + (first + row) * DIM + b.first_column() + piece * 8) = *(const uint4*)(rows + row * PITCH + piece * 16);
    }
}

// All tiles' products of STEPS times 16 slots with COLUMNS features, PARTS times EACH: more than 192 columns do not fit a product's registers.
template <int C, int STEPS, int PARTS, int EACH>
static __device__ __forceinline__ void sum_tiles(const Block<C>& b, float (&o)[PARTS][EACH / 2]) {
    using F = Form<C>;
    const int head = warp() % 4 * 16 + lane() / 4;
    float factor[2] = {};
    auto look = [&](int place) {  // a row without a head looks at another's
        for (int side = 0; side < 2; side++) factor[side] = __uint_as_float(load_shared(b.factors(place) + (head + side * 8 & b.group - 1) * 4));
    };
    const u64 first_weights = operand32(b.weight(0)), step = further(b.group * 32);
    const u64 first_values = F::SLICE_ROW == 64 ? operand64(b.slice(0)) : operand128(b.slice(0), TILE * 128);
    u64 weights = first_weights, values = first_values;
    int place = 0, slice = 0;
    u32 lap = 0;
    if (b.tiles > 0) barrier_wait(b.ready(0), 0);
#pragma unroll 1
    for (int left = b.tiles; left > 0;) {
        matrix_start();
#pragma unroll
        for (int k = 0; k < STEPS; k++)
#pragma unroll
            for (int i = 0; i < PARTS; i++)
                multiply_turned(o[i], weights + k * step, values + further(k * (STEP * F::SLICE_ROW) + i * (EACH / 64) * (TILE * 128)));
        matrix_commit();
        // Under these products, all that the next ones begin with, if it is there: nobody waits while he holds what others may wait for.
        const u32 done = b.summed(place);
        if (++place == F::WEIGHTS) place = 0, lap ^= 1;
        if (++slice == F::SLICES) slice = 0;
        weights = first_weights + further(place * b.pitch);
        values = first_values + further(slice * F::SLICE_BYTES);
        const bool there = --left > 0 && barrier_reached(b.ready(place), lap);
        if (there) look(place);
        matrix_wait<0>();
        barrier_arrive(done);
        if (left == 0) break;
        if (!there) {
            barrier_wait(b.ready(place), lap);
            look(place);
        }
#pragma unroll
        for (int i = 0; i < F::COLUMNS / 2; i++) o[i / (EACH / 2)][i % (EACH / 2)] *= factor[i >> 1 & 1];
    }
}

template <int C> static __device__ __forceinline__ void sum(const Block<C>& b) {
    using F = Form<C>;
    const int l = lane(), w = warp() % 4, h[2] = {w * 16 + l / 4, w * 16 + l / 4 + 8};
    const bool busy = w * 16 < b.group;
    constexpr int PARTS = F::COLUMNS > 192 ? 2 : 1, EACH = F::COLUMNS / PARTS;
    float o[PARTS][EACH / 2] = {};
    cluster_wait();
    if (b.slots == TILE) sum_tiles<C, TILE / STEP, PARTS, EACH>(b, o);
    else sum_tiles<C, NARROW_TILE / STEP, PARTS, EACH>(b, o);
    sync_some<1, 128 + SUMMERS>();  // every index was seen, every chain is at its end
    u32 suspect = 0, words[F::COLUMNS / 4];
#pragma unroll
    for (int side = 0; side < 2; side++) {
        const float inverse = b.inverses()[h[side]];
        u32 check = 0;
#pragma unroll
        for (int i = 0; i < F::COLUMNS / 8; i++) {
            const float* v = o[i * 4 / (EACH / 2)] + i * 4 % (EACH / 2) + 2 * side;
            const int word = i / 2 * 4 + side * 2 + i % 2;
            words[word] = narrow2(v[0] * inverse, v[1] * inverse);
            check2(check, words[word]);
        }
        if (h[side] < b.heads && check & 0x7fff7fff) suspect |= 1 << side;
    }
    if (suspect) suspects(b, suspect, h);
    __syncwarp();
    cluster_arrive();
    if (busy) store_rows(b, words);
    cluster_wait();
    if (b.suspicious()) {
        cluster_release();
        cluster_arrive();
        cluster_wait();
    }
    if (b.rank == 0) conclude<SUMMERS, 128>(b, (float*)memory);
}
