// Blocks of a ratio that do not overlap, in tiles: 32 features, CHUNK slots of the window. FETCHERS warps of a block ask for its tiles
// one after the other, into BUFFERS places of shared memory: asking stalls where memory is busy, so that nobody else has to. Each of
// POOLERS warps has SLOTS_EACH slots of every tile, a lane a feature: weights are in registers only, and the two sums go from warp
// to warp, in the order of the slots.

#define CHUNK 128
#define POOLERS 4
#define FETCHERS 2
#define PLAIN_THREADS ((POOLERS + FETCHERS) * WARP)
#define SLOTS_EACH (CHUNK / POOLERS)
#if __CUDA_ARCH__ == 900
#define BUFFERS 3
#define PLAIN_BLOCKS 2  // of a multiprocessor
#else
#define BUFFERS 2  // as much as every chip has
#define PLAIN_BLOCKS 1
#endif

struct Tile {
    float scores[CHUNK][WARP], values[CHUNK][WARP];
};

struct Sums {
    float numerator, denominator;
};

// A barrier in shared memory, which opens for the `n`th time when all of its threads have arrived that often.
struct Gate {
    u64 barrier;

    __device__ __forceinline__ void begin(u32 threads) { barrier_init(shared_address(&barrier), threads); }
    __device__ __forceinline__ void arrive() { barrier_arrive(shared_address(&barrier)); }
    // When the thread's copies have come.
    __device__ __forceinline__ void arrive_copied() { barrier_arrive_copied(shared_address(&barrier)); }
    // `nothing` is 0, and known when the waiting begins.
    __device__ __forceinline__ void wait(u32 n, u32 nothing = 0) { barrier_wait(shared_address(&barrier) + nothing, n % 2); }
};

// What a block's warps share beside tiles, for all tokens of a row.
struct Pool {
    Gate come[BUFFERS], done[BUFFERS];  // a place's tile
    Gate known, turn[POOLERS];          // the largest scores; the sums of the slots before a warp's
    float most[2][POOLERS][WARP];
    Sums sums[POOLERS][WARP];

    __device__ __forceinline__ void begin() {
        if (threadIdx.x == 0) {
            for (u32 i = 0; i < BUFFERS; i++) come[i].begin(FETCHERS * WARP), done[i].begin(POOLERS * WARP);
            known.begin(POOLERS * WARP);
            for (u32 i = 0; i < POOLERS; i++) turn[i].begin(WARP);
        }
        __syncthreads();
    }
};

// A block's tile of a row: all chunks of its features, then those of the next.
struct At {
    u32 chunk, f;

    __device__ __forceinline__ void next(const Row& row) {
        chunk += CHUNK;
        if (chunk < row.ratio) return;
        chunk = 0;
        f += parts() * WARP;
    }
};

// The window that ends with a token.
struct Window {
    const Row& row;
    u32 token, oldest;
    u64 kept;  // where the state has the token

    __device__ __forceinline__ Window(const Row& row, u32 token, Place now)
        : row(row), token(token), oldest(row.ring ? before(row, now, row.ratio - 1) : 0), kept((u64)(row.ring ? now.row : now.phase) * row.d) {}

    // The state's row of a slot.
    __device__ __forceinline__ u32 place(u32 slot) const {
        u32 at = oldest + slot;
        return at >= row.state_rows ? at - row.state_rows : at;
    }
};

// Asks for a tile: the window from the state, but its last slot, the token.
static __device__ __forceinline__ void fetch(const Window& window, At at, Tile* tile) {
    const Row& row = window.row;
    const u32 step = FETCHERS * WARP / 8, thread = threadIdx.x - POOLERS * WARP, column = thread % 8 * 4;
    const u32 last = row.ratio - 1 - at.chunk, bytes = row.d * sizeof(float);
    const u64 feature = (at.f + column) * sizeof(float);
    const bool aligned = (row.kv_state | row.score_state) % 16 == 0;
#pragma unroll
    for (u32 i = 0; i < CHUNK / step; i++) {
        u32 slot = i * step + thread / 8;
        u64 offset = (u64)window.place(at.chunk + slot) * bytes + feature;
        float *scores = &tile->scores[slot][column], *values = &tile->values[slot][column];
        if (slot < last && aligned) {
            copy_async<16>(scores, row.score_state + offset);
            copy_async<16>(values, row.kv_state + offset);
        } else if (slot < last) {
#pragma unroll 1
            for (u32 j = 0; j < 4; j++) {
                copy_async<4>(scores + j, row.score_state + offset + j * sizeof(float));
                copy_async<4>(values + j, row.kv_state + offset + j * sizeof(float));
            }
        }
    }
}

// A lane's largest score beyond the first chunk, where a window has more.
static __device__ float most_of_later_chunks(const Window& window, u32 f) {
    const Row& row = window.row;
    float most = -F32_INF;
#pragma unroll 1
    for (u32 slot = CHUNK + warp(); slot < row.ratio; slot += POOLERS) {
        most = larger(most, slot + 1 == row.ratio ? take(row, window.token, slot, row.d, f).score
                                                  : load(row.score_state + ((u64)window.place(slot) * row.d + f) * sizeof(float)));
    }
    return most;
}

// A warp's slots of all of a window's tiles, and the token where it is one of them. `windows` and `n` tiles were before.
static __device__ __forceinline__ void pool_tiles(const Window& window, Tile* tiles, u32 windows, u32 n, Pool& pool, float* c, Meeting& meeting) {
    const Row& row = window.row;
    const u32 d = row.d, from = warp() * SLOTS_EACH;
    // To the first warp sums come from the chunk before, and to a window's first chunk none.
    u32 turns = warp() == 0 ? n - windows : n;
    float kv = 0.0f, score = 0.0f, ape = 0.0f, most = -F32_INF;
    auto has = [&](u32 slot) { return slot >= from && slot < from + SLOTS_EACH; };
    auto ask = [&](At at) {
        if (at.f >= d || !has(row.ratio - 1 - at.chunk)) return;
        u32 f = at.f + lane();
        kv = load(row.kv + ((u64)window.token * d + f) * sizeof(float));
        score = load(row.score + ((u64)window.token * d + f) * sizeof(float));
        ape = load(row.ape + ((u64)(row.ratio - 1) * d + f) * sizeof(float));
    };
    At at = {0, part() * WARP};
    ask(at);
#pragma unroll 1
    for (; at.f < d; n++) {
        Tile* tile = tiles + n % BUFFERS;
        const u32 last = row.ratio - 1 - at.chunk;
        At next = at;
        next.next(row);
        // No copy writes here, and nobody else reads it.
        if (has(last)) {
            Token own = token_of(kv, score, ape);
            tile->values[last][lane()] = own.kv;
            tile->scores[last][lane()] = own.score;
            keep(row, window.kept + at.f + lane(), own);
        }
        // Beyond the window, what changes no sum.
#pragma unroll 1
        for (u32 slot = max(last + 1, from); slot < from + SLOTS_EACH; slot++) {
            tile->scores[slot][lane()] = -F32_INF;
            tile->values[slot][lane()] = -0.0f;
        }
        ask(next);
        pool.come[n % BUFFERS].wait(n / BUFFERS);
        float weights[SLOTS_EACH], values[SLOTS_EACH];
#pragma unroll
        for (u32 i = 0; i < SLOTS_EACH; i++) weights[i] = tile->scores[from + i][lane()];
        if (at.chunk == 0) {
            most = row.ratio > CHUNK ? most_of_later_chunks(window, at.f + lane()) : -F32_INF;
#pragma unroll
            for (u32 i = 0; i < SLOTS_EACH; i++) most = larger(most, weights[i]);
            float (*places)[WARP] = pool.most[windows % 2];
            places[warp()][lane()] = most;
            pool.known.arrive();
            pool.known.wait(windows++);
#pragma unroll
            for (u32 i = 0; i < POOLERS; i++) most = larger(most, places[i][lane()]);
        }
#pragma unroll
        for (u32 i = 0; i < SLOTS_EACH; i++) values[i] = tile->values[from + i][lane()];
        pool.done[n % BUFFERS].arrive();
#pragma unroll
        for (u32 i = 0; i < SLOTS_EACH; i++) weights[i] = weigh(weights[i], most);
        // No weight is negative, which the compiler does not know: it would weigh when the warp's turn has come.
        u32 negative = 0;
#pragma unroll
        for (u32 i = 0; i < SLOTS_EACH; i++) negative |= __float_as_uint(weights[i]) >> 31;
        Sums sums = {0.0f, 0.0f};
        if (warp() > 0 || at.chunk > 0) {
            pool.turn[warp()].wait(turns++, negative);
            sums = pool.sums[warp()][lane()];
        }
#pragma unroll
        for (u32 i = 0; i < SLOTS_EACH; i++) {
            sums.denominator = __fadd_rn(sums.denominator, weights[i]);
            sums.numerator = __fmaf_rn(weights[i], values[i], sums.numerator);
        }
        if (warp() + 1 < POOLERS || next.chunk > 0) {
            u32 other = (warp() + 1) % POOLERS;
            pool.sums[other][lane()] = sums;
            pool.turn[other].arrive();
        } else {
            float value = pooled(sums.numerator, sums.denominator), *to = &c[at.f + lane()];
            if (parts() == 1) *to = value;
            else meeting.send(to, value);
        }
        at = next;
    }
}

// `blocks` ended before.
static __device__ __forceinline__ void pool_plain(const Row& row, u32 token, Place now, u32 blocks, Pool& pool, float* norm, float* c, Meeting& meeting) {
    const u32 d = row.d, stride = parts() * WARP, first = part() * WARP;
    const Window window(row, token, now);
    if (token == 0) wait_for_predecessors();
    if (now.phase + 1 < row.ratio) {
        // A feature is always the same block's, which then finds its earlier tokens.
        for (u32 f = warp() * stride + first + lane(); f < d; f += PLAIN_THREADS / WARP * stride) keep(row, window.kept + f, take(row, token, now.phase, d, f));
        return;
    }
    if (first >= d) return;
    Tile* tiles = (Tile*)(c + d);
    u32 windows = blocks * ((d - first + stride - 1) / stride), n = windows * ((row.ratio + CHUNK - 1) / CHUNK);
    ask_for_norm(row, norm);
    if (warp() < POOLERS) {
        pool_tiles(window, tiles, windows, n, pool, c, meeting);
        return;
    }
#pragma unroll 1
    for (At at = {0, first}; at.f < d; at.next(row), n++) {
        if (n >= BUFFERS) pool.done[n % BUFFERS].wait(n / BUFFERS - 1);
        fetch(window, at, tiles + n % BUFFERS);
        pool.come[n % BUFFERS].arrive_copied();
    }
}
