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
    const u32 step = FETCHERS * WARP / 8, thread = threadIdx.x - POOLERS * WARP, first = thread / 8, column = thread % 8 * 4;
    const u32 last = row.ratio - 1 - at.chunk, bytes = row.d * sizeof(float);
    const u64 feature = (at.f + column) * sizeof(float), scores = row.score_state + feature, values = row.kv_state + feature;
    // Little code: it is not in the instruction cache when a launch starts, and asking faster than this wins nothing with many rows.
    if ((row.kv_state | row.score_state) % 16 == 0) {
#pragma unroll 2
        for (u32 i = 0; i < CHUNK / step; i++) {
            u32 slot = first + i * step;
            u64 offset = (u64)window.place(at.chunk + slot) * bytes;
            if (slot >= last) continue;
            copy_async<16>(&tile->scores[slot][column], scores + offset);
            copy_async<16>(&tile->values[slot][column], values + offset);
        }
    } else {
#pragma unroll 1
        for (u32 slot = first; slot < min(last, CHUNK); slot += step) {
            u64 offset = (u64)window.place(at.chunk + slot) * bytes;
            for (u32 j = 0; j < 4; j++) {
                copy_async<4>(&tile->scores[slot][column + j], scores + offset + j * sizeof(float));
                copy_async<4>(&tile->values[slot][column + j], values + offset + j * sizeof(float));
            }
        }
    }
}

// Asks for a tile to come to the second-level cache, which all writes go through: nothing is read, and it may still be written.
static __device__ __forceinline__ void announce(const Window& window, At at) {
    const Row& row = window.row;
    const u32 bytes = row.d * sizeof(float), last = row.ratio - 1 - at.chunk;
#pragma unroll 1
    for (u32 slot = threadIdx.x - POOLERS * WARP; slot < min(last, CHUNK); slot += FETCHERS * WARP) {
        u64 offset = (u64)window.place(at.chunk + slot) * bytes + at.f * sizeof(float);
        asm volatile("prefetch.global.L2 [%0];" :: "l"(row.score_state + offset));
        asm volatile("prefetch.global.L2 [%0];" :: "l"(row.kv_state + offset));
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
            // Eight chains and a tree, which is quicker than one chain.
            float mosts[8];
#pragma unroll
            for (u32 i = 0; i < SLOTS_EACH; i++) mosts[i % 8] = i < 8 ? weights[i] : larger(mosts[i % 8], weights[i]);
#pragma unroll
            for (u32 half = 4; half > 0; half /= 2) {
#pragma unroll
                for (u32 i = 0; i < half; i++) mosts[i] = larger(mosts[i], mosts[i + half]);
            }
            most = larger(most, mosts[0]);
            pool.most[windows % 2][warp()][lane()] = most;
            pool.known.arrive();
        }
#pragma unroll
        for (u32 i = 0; i < SLOTS_EACH; i++) values[i] = tile->values[from + i][lane()];
        pool.done[n % BUFFERS].arrive();
        if (at.chunk == 0) {
            float (*places)[WARP] = pool.most[windows % 2];
            pool.known.wait(windows++);
#pragma unroll
            for (u32 i = 0; i < POOLERS; i++) most = larger(most, places[i][lane()]);
        }
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

// A token's features that are this block's, from its inputs to the state; always the same block's, which then finds its earlier tokens.
static __device__ __forceinline__ void keep_token(const Row& row, u32 token, Place now, u64 kept) {
    const u32 d = row.d, stride = PLAIN_THREADS * parts(), many = 2;
#pragma unroll 1
    for (u32 from = (warp() * parts() + part()) * WARP + lane(); from < d; from += many * stride) {
        float kv[many], score[many], ape[many];
#pragma unroll
        for (u32 i = 0; i < many; i++) {
            u64 f = from + i * stride;
            if (f >= d) continue;
            kv[i] = load(row.kv + ((u64)token * d + f) * sizeof(float));
            score[i] = load(row.score + ((u64)token * d + f) * sizeof(float));
            ape[i] = load(row.ape + ((u64)now.phase * d + f) * sizeof(float));
        }
#pragma unroll
        for (u32 i = 0; i < many; i++) {
            if (from + i * stride < d) keep(row, kept + from + i * stride, token_of(kv[i], score[i], ape[i]));
        }
    }
}

// `blocks` ended before.
static __device__ __forceinline__ void pool_plain(const Row& row, u32 token, Place now, u32 blocks, Pool& pool, float* norm, float* c, Meeting& meeting) {
    const u32 d = row.d, stride = parts() * WARP, first = part() * WARP;
    const Window window(row, token, now);
    const bool ends = now.phase + 1 == row.ratio, pools = warp() < POOLERS;
    u32 windows = blocks > 0 ? blocks * ((d - first + stride - 1) / stride) : 0, n = windows * ((row.ratio + CHUNK - 1) / CHUNK);
    // While the launch before ends, what is asked for first comes nearer.
    if (token == 0 && ends && !pools) {
        At at = {0, first};
        for (u32 i = 0; i < BUFFERS && at.f < d; i++, at.next(row)) announce(window, at);
    }
    if (token == 0) wait_for_predecessors();
    if (!ends) {
        keep_token(row, token, now, window.kept);
        return;
    }
    if (first >= d) return;
    Tile* tiles = (Tile*)(c + d);
    if (pools) {
        ask_for_norm(row, norm);
        pool_tiles(window, tiles, windows, n, pool, c, meeting);
        return;
    }
#pragma unroll 1
    for (At at = {0, first}; at.f < d; at.next(row), n++) {
        if (n >= BUFFERS) pool.done[n % BUFFERS].wait(n / BUFFERS - 1);
        fetch(window, at, tiles + n % BUFFERS);
        pool.come[n % BUFFERS].arrive_copied();
    }
    // Not before: launches that pile up would take each other's places.
    dependents_may_start();
}
