// Blocks of a ratio that do not overlap, in pieces of a window, one after the other: 32 features, CHUNK slots. WEIGHERS warps fetch
// and weigh a piece's slots; one more warp brings the token, and sums up, slot after slot, what they have weighed. Pieces lie in BUFFERS
// places of shared memory, so that others are on their way while one is weighed. Loops are short: what they cost is mostly the
// fetching of their code.

#define WEIGHERS 8
#define PLAIN_THREADS ((WEIGHERS + 1) * WARP)
#define CHUNK 128
#if __CUDA_ARCH__ == 900
#define BUFFERS 3
#define PLAIN_BLOCKS 2  // of a multiprocessor
#else
#define BUFFERS 2  // as much as every chip has
#define PLAIN_BLOCKS 1
#endif

// Two slots: scores and values, of which a warp makes weights and values, side by side for each feature.
union Slots2 {
    struct {
        float scores[WARP], values[WARP];
    } of[2];
    float4 weighed[WARP];  // by place_of
};
struct Piece {
    Slots2 slots[CHUNK / 2];
};

// Where four features side by side go, so that stores of eight threads meet different banks; and which feature is at a place.
static __device__ __forceinline__ int place_of(int column, int i) { return i * 8 + column / 4; }
static __device__ __forceinline__ int feature_at(int place) { return place % 8 * 4 + place / 8; }

// Barriers of the block: weighers among themselves; a piece has its token; it is weighed; it is summed up. Pieces take turns.
#define MOSTS 2
#define BROUGHT(n) (3 + (n) % 2)
#define WEIGHED(n) (5 + (n) % 2)
#define SUMMED(n) (7 + (n) % 2)

static __device__ __forceinline__ void meet(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" :: "r"(barrier), "r"(threads) : "memory");
}

static __device__ __forceinline__ void arrive(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" :: "r"(barrier), "r"(threads) : "memory");
}

// A piece of a part's share: all chunks of 32 features, then those of the next.
struct At {
    u32 chunk, f;

    __device__ __forceinline__ void next(const Row& row) {
        chunk += CHUNK;
        if (chunk < row.ratio) return;
        chunk = 0;
        f += parts() * WARP;
    }
};

// A weigher's thread has four features of VECTORS slots.
#define VECTORS (CHUNK / WEIGHERS / 4)
static __device__ __forceinline__ u32 slot_of(int i) { return (warp() * 4 + lane() / 8) * VECTORS + i; }
static __device__ __forceinline__ u32 column() { return lane() % 8 * 4; }
static __device__ __forceinline__ float* scores_of(Piece* piece, u32 slot) { return piece->slots[slot / 2].of[slot % 2].scores; }
static __device__ __forceinline__ float* values_of(Piece* piece, u32 slot) { return piece->slots[slot / 2].of[slot % 2].values; }

// Asks for a weigher's slots of a piece: all of the window but the last, which is the token.
static __device__ __forceinline__ void fetch(const Row& row, u32 oldest, At at, Piece* piece) {
    u32 last = row.ratio - 1 - at.chunk, bytes = row.d * sizeof(float);
    u64 feature = (at.f + column()) * sizeof(float);
    bool aligned = (row.kv_state | row.score_state) % 16 == 0;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        u32 slot = slot_of(i), place = oldest + at.chunk + slot;
        if (place >= row.state_rows) place -= row.state_rows;
        if (slot >= last) break;
        u64 offset = (u64)place * bytes + feature;
        float *scores = scores_of(piece, slot) + column(), *values = values_of(piece, slot) + column();
        if (aligned) {
            copy_async<16>(scores, row.score_state + offset);
            copy_async<16>(values, row.kv_state + offset);
        } else {
#pragma unroll 1
            for (int j = 0; j < 4; j++) {
                copy_async<4>(scores + j, row.score_state + offset + j * sizeof(float));
                copy_async<4>(values + j, row.kv_state + offset + j * sizeof(float));
            }
        }
    }
    end_copies();
}

// The largest scores beyond the first chunk, where a window has more.
static __device__ float4 most_of_later_chunks(const Row& row, u32 token, u32 oldest, u32 f) {
    float most[4] = {-F32_INF, -F32_INF, -F32_INF, -F32_INF};
#pragma unroll 1
    for (u32 slot = CHUNK + slot_of(0); slot < row.ratio; slot += 4) {
        u32 place = oldest + slot;
        if (place >= row.state_rows) place -= row.state_rows;
        for (u32 i = 0; i < 4; i++) {
            float score = slot + 1 == row.ratio ? take(row, token, row.ratio - 1, row.d, f + i).score
                                                : load(row.score_state + ((u64)place * row.d + f + i) * sizeof(float));
            most[i] = larger(most[i], score);
        }
    }
    return make_float4(most[0], most[1], most[2], most[3]);
}

static __device__ __forceinline__ float4 larger(float4 a, float4 b) {
    return make_float4(larger(a.x, b.x), larger(a.y, b.y), larger(a.z, b.z), larger(a.w, b.w));
}

static __device__ __forceinline__ float4 from_lane(float4 x, int distance) {
    return make_float4(__shfl_xor_sync(FULL, x.x, distance), __shfl_xor_sync(FULL, x.y, distance),
                       __shfl_xor_sync(FULL, x.z, distance), __shfl_xor_sync(FULL, x.w, distance));
}

// The largest of each feature's scores, from those of each thread.
static __device__ __forceinline__ float4 largest(float4 own, float4 (*place)[WARP / 4]) {
    own = larger(own, from_lane(own, 8));
    own = larger(own, from_lane(own, 16));
    if (lane() < 8) place[warp()][lane()] = own;
    meet(MOSTS, WEIGHERS * WARP);
#pragma unroll
    for (int w = 0; w < WEIGHERS; w++) own = larger(own, place[w][lane() % 8]);
    return own;
}

static __device__ __forceinline__ void weigh_pieces(const Row& row, u32 token, u32 oldest, Piece* pieces) {
    __shared__ float4 places[WEIGHERS][WARP / 4];
    const float4 none = make_float4(-F32_INF, -F32_INF, -F32_INF, -F32_INF);
    At asked = {0, part() * WARP};
    auto ask = [&](u32 n) {
        if (asked.f < row.d) fetch(row, oldest, asked, pieces + n % BUFFERS);
        else end_copies();
        asked.next(row);
    };
#pragma unroll 1
    for (u32 n = 0; n < BUFFERS - 1; n++) ask(n);
    float4 most;
    u32 n = 0;
#pragma unroll 1
    for (At at = {0, part() * WARP}; at.f < row.d; at.next(row), n++) {
        Piece* piece = pieces + n % BUFFERS;
        u32 last = row.ratio - 1 - at.chunk;
        wait_for_copies<BUFFERS - 2>();
        meet(BROUGHT(n), PLAIN_THREADS);
        if (at.chunk == 0) {
            most = row.ratio > CHUNK ? most_of_later_chunks(row, token, oldest, at.f + column()) : none;
#pragma unroll
            for (int i = 0; i < VECTORS; i++) {
                if (slot_of(i) <= last) most = larger(most, *(float4*)(scores_of(piece, slot_of(i)) + column()));
            }
            most = largest(most, places);
        }
#pragma unroll 1
        for (int i = 0; i < VECTORS; i += 2) {
            Slots2& slots = piece->slots[slot_of(i) / 2];
            float weights[2][4], values[2][4];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float4 s = *(float4*)&slots.of[j].scores[column()], v = *(float4*)&slots.of[j].values[column()];
                // Beyond the window, what changes no sum.
                bool within = slot_of(i) + j <= last;
                weights[j][0] = within ? weigh(s.x, most.x) : 0.0f, values[j][0] = within ? v.x : -0.0f;
                weights[j][1] = within ? weigh(s.y, most.y) : 0.0f, values[j][1] = within ? v.y : -0.0f;
                weights[j][2] = within ? weigh(s.z, most.z) : 0.0f, values[j][2] = within ? v.z : -0.0f;
                weights[j][3] = within ? weigh(s.w, most.w) : 0.0f, values[j][3] = within ? v.w : -0.0f;
            }
            // The lanes that have these slots have read them.
            __syncwarp();
#pragma unroll
            for (int k = 0; k < 4; k++) {
                slots.weighed[place_of(column(), k)] = make_float4(weights[0][k], values[0][k], weights[1][k], values[1][k]);
            }
        }
        arrive(WEIGHED(n), PLAIN_THREADS);
        // The next piece but one takes the place of the one before.
        if (n > 0) meet(SUMMED(n - 1), PLAIN_THREADS);
        ask(n + BUFFERS - 1);
    }
}

// The warp beside the weighers. It asks for a piece's token two pieces ahead, and brings it before it sums up the piece before.
static __device__ __forceinline__ void sum_up(const Row& row, u32 token, Place now, Piece* pieces, float* c, Meeting& meeting) {
    u32 d = row.d, last = (row.ratio - 1) % CHUNK, feature = feature_at(lane());
    u64 bytes = d * sizeof(float), kept = (row.ring ? now.row : now.phase) * bytes;
    float numerator = 0.0f, denominator = 0.0f, kv, score, ape;
    auto ask = [&](At at) {
        if (at.f >= d) return;
        u64 f = (at.f + lane()) * sizeof(float);
        kv = load(row.kv + token * bytes + f);
        score = load(row.score + token * bytes + f);
        ape = load(row.ape + (row.ratio - 1) * bytes + f);
    };
    auto bring = [&](u32 n, At at) {
        if (at.f >= d) return;
        // With the window's last chunk.
        if (at.chunk + CHUNK >= row.ratio) {
            Token own = token_of(kv, score, ape);
            Piece* piece = pieces + n % BUFFERS;
            scores_of(piece, last)[lane()] = own.score;
            values_of(piece, last)[lane()] = own.kv;
            u64 f = (at.f + lane()) * sizeof(float);
            store(row.kv_state + kept + f, own.kv);
            store(row.score_state + kept + f, own.score);
        }
        arrive(BROUGHT(n), PLAIN_THREADS);
    };
    At at = {0, part() * WARP}, next = at;
    ask(at);
    bring(0, at);
    next.next(row);
    ask(next);
#pragma unroll 1
    for (u32 n = 0; at.f < d; n++) {
        const Piece* piece = pieces + n % BUFFERS;
        At beyond = next;
        beyond.next(row);
        bring(n + 1, next);
        ask(beyond);
        meet(WEIGHED(n), PLAIN_THREADS);
#pragma unroll 16
        for (int i = 0; i < CHUNK / 2; i++) {
            float4 two = piece->slots[i].weighed[lane()];
            denominator = __fadd_rn(denominator, two.x);
            numerator = __fmaf_rn(two.x, two.y, numerator);
            denominator = __fadd_rn(denominator, two.z);
            numerator = __fmaf_rn(two.z, two.w, numerator);
        }
        if (next.f < d) arrive(SUMMED(n), PLAIN_THREADS);
        if (next.chunk == 0) {
            float value = pooled(numerator, denominator);
            float* to = &c[at.f + feature];
            if (parts() == 1) *to = value;
            else meeting.send(to, value);
            numerator = denominator = 0.0f;
        }
        at = next;
        next = beyond;
    }
}

static __device__ __forceinline__ void pool_plain(const Row& row, u32 token, Place now, bool ends, float* norm, float* c, Meeting& meeting) {
    u32 d = row.d, stride = parts() * WARP;
    if (token == 0) wait_for_predecessors();
    if (!ends) {
        for (u32 f = warp() * stride + part() * WARP + lane(); f < d; f += PLAIN_THREADS / WARP * stride) {
            keep(row, (u64)(row.ring ? now.row : now.phase) * d + f, take(row, token, now.phase, d, f));
        }
        return;
    }
    Piece* pieces = (Piece*)(c + d);
    ask_for_norm(row, norm);
    if (warp() < WEIGHERS) weigh_pieces(row, token, row.ring ? before(row, now, row.ratio - 1) : 0, pieces);
    else sum_up(row, token, now, pieces, c, meeting);
}
