// The compressor. A row is worked by a block, or by a cluster of blocks, its parts, whose first normalises and writes what all
// of them pooled. Every entry of the table holds all of its row, so that calls of several compressors are one launch.
//
// A thread has one feature and SLOTS slots of the window, and asks for all of these before it looks at any: the memory's latency
// is paid once. Where blocks overlap that is the whole window, in registers. Elsewhere a warp has 32 features, the block's warps
// have their slots in shared memory, and the first adds up what all have weighed, slot after slot. No sum is split.

#define SLOTS 8  // of a thread: the whole window where blocks overlap
#define OVERLAPPED_THREADS 512
#define PLAIN_WARPS 16
#define CHUNK (PLAIN_WARPS * SLOTS)

struct Row {
    u64 kv, score;              // f32 [tokens][features]
    u64 kv_state, score_state;  // f32 [state_rows][features]
    u64 ape;                    // f32 [ratio][features]
    u64 norm;                   // f32 [d]
    u64 out;                    // bf16 [outputs][d], from this row's first on
    u64 status;                 // u32 of this row, or 0
    u32 start, tokens, state_rows, ratio;
    u32 phase, place;           // start mod ratio, start mod state_rows
    int d, ring, every_token;   // d is 0 in a padding entry
    float epsilon;
    int pad[2];
};

// Where a token stands: its position, that within its block, and its row of a ring.
struct Place {
    u32 position, phase, row;
};

// The row of a ring `back` tokens before; the ring has more.
static __device__ __forceinline__ u32 before(const Row& row, Place at, u32 back) {
    return at.row >= back ? at.row - back : at.row + row.state_rows - back;
}

// A pointer from the table.
template <typename T>
static __device__ __forceinline__ T* global(u64 address) { return (T*)address; }

// One token's inputs and what the state keeps of it, one feature.
struct Token {
    float kv, score;
};

static __device__ __forceinline__ Token take(const Row& row, u32 token, u32 phase, int features, int g) {
    u64 at = (u64)token * features + g;
    float kv = global<float>(row.kv)[at], score = global<float>(row.score)[at];
    float biased = __fadd_rn(score, global<float>(row.ape)[(u64)phase * features + g]);
    bool legal = finite(kv) && finite(score) && biased == biased;
    return {finite(kv) ? kv : 0.0f, legal ? biased : F32_NAN};
}

static __device__ __forceinline__ void keep(const Row& row, u64 at, Token token) {
    global<float>(row.kv_state)[at] = token.kv;
    global<float>(row.score_state)[at] = token.score;
}

// Slots of the window that a thread has.
struct Slots {
    float kv[SLOTS], score[SLOTS];
};

// Of a score that is no number or +inf, it is no number: the feature fails closed, as it does by itself where a value is not finite.
static __device__ __forceinline__ float weigh(float score, float most) {
    return score <= F32_MAX ? exp_ref(__fsub_rn(score, most)) : F32_NAN;
}

static __device__ __forceinline__ u32 part() {
#if __CUDA_ARCH__ >= 900
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
#else
    return 0;
#endif
}

static __device__ __forceinline__ u32 parts() {
#if __CUDA_ARCH__ >= 900
    u32 count;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
    return count;
#else
    return 1;
#endif
}

// Where the parts of a row meet. Each sends what it pools into the first one's shared memory and need not wait for anybody; a
// transaction barrier there is passed when all features have come. A row of one part has neither.
struct Meeting {
    u64 barrier;

    // All parts have started, and the barrier is there.
    __device__ __forceinline__ void begin() {
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x == 0) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(shared_address(&barrier)) : "memory");
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        __syncthreads();
        asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
        asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
    }

    // The first part has done all that it did before.
    __device__ __forceinline__ void again() {
#if __CUDA_ARCH__ >= 900
        asm volatile("barrier.cluster.arrive.release;" ::: "memory");
        asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
    }

    // Writes to the same place in the first part's shared memory.
    __device__ __forceinline__ void send(float* at, float c) {
#if __CUDA_ARCH__ >= 900
        asm volatile("{.reg .b32 there, meeting; mapa.shared::cluster.u32 there, %0, 0; mapa.shared::cluster.u32 meeting, %1, 0;"
                     "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [there], %2, [meeting];}"
                     :: "r"(shared_address(at)), "r"(shared_address(&barrier)), "r"(__float_as_uint(c)) : "memory");
#endif
    }

    // In the first part: all features of its `n`th block have come.
    __device__ __forceinline__ void wait(u32 n, u32 bytes) {
#if __CUDA_ARCH__ >= 900
        u32 at = shared_address(&barrier);
        if (threadIdx.x == 0) {
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at), "r"(bytes) : "memory");
        }
        asm volatile("{.reg .pred passed;\nAGAIN: mbarrier.try_wait.parity.shared::cta.b64 passed, [%0], %1;"
                     "\n@!passed bra AGAIN;}" :: "r"(at), "r"(n & 1) : "memory");
#endif
    }
};

template <int BYTES>
static __device__ __forceinline__ void copy_async(float* to, const float* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
                 :: "r"(shared_address(to)), "l"(from), "n"(BYTES));
}

// All groups of copies but the newest `PENDING` have come.
template <int PENDING>
static __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
}

static __device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// A pooled feature, rounded to bf16; what fails closed is no number, and so the sum of squares is none.
static __device__ __forceinline__ float pooled(float numerator, float denominator) {
    float c = __fdiv_rn(numerator, denominator);
    return finite(c) ? widen(narrow(c)) : F32_NAN;
}

// The row's entry from what all parts pooled: mean of squares, norm. Returns its faults.
static __device__ __forceinline__ u32 normalise(const Row& row, const float* norm, const float* c, bf16* out) {
    __shared__ float mean_of_squares;
    if (warp() == 0) {
        float p = 0.0f;
#pragma unroll 8
        for (int f = lane(); f < row.d; f += WARP) p = __fmaf_rn(c[f], c[f], p);
        p = tree(p);
        if (lane() == 0) mean_of_squares = __fdiv_rn(p, (float)row.d);
    }
    __syncthreads();
    float mean = mean_of_squares;
    float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, row.epsilon)));
    bool bad = !finite(mean);
    for (int f = threadIdx.x; f < row.d; f += blockDim.x) {
        float result = __fmul_rn(__fmul_rn(c[f], r), norm[f]);
        bf16 rounded = narrow(result);
        bad |= !finite(result) || !finite_bits(rounded);
        out[f] = rounded;
    }
    if (!__syncthreads_or(bad)) return 0;
    for (int f = threadIdx.x; f < row.d; f += blockDim.x) out[f] = 0;
    return NONFINITE_STATE;
}

// Blocks of a ratio that overlap: the whole row in one block, a feature's two halves and its window in one thread, so that
// nobody waits for another's state.
template <bool IN_RING>
static __device__ __forceinline__ void pool_overlapped(const Row& row, u32 token, Place now, bool ends, float* c) {
    const int ratio = SLOTS / 2;
    u64 d = row.d, features = 2 * d;
    u64 place = (IN_RING ? now.row : ratio + now.phase) * features;
    const float* kv_state = global<float>(row.kv_state);
    const float* score_state = global<float>(row.score_state);
    // In a ring the first block has nothing before it.
    bool first = IN_RING && now.position < ratio;
    u64 oldest = IN_RING ? before(row, now, first ? ratio - 1 : SLOTS - 1) * features : 0;
    for (int f = threadIdx.x; f < row.d; f += blockDim.x) {
        Slots slots;
        // What moves at the block's end in the shifted layout, beside what is pooled: the current block's first half.
        Slots moved;
        if (ends) {
            u64 at = oldest, end = row.state_rows * features;
#pragma unroll
            for (int i = 0; i < SLOTS - 1; i++) {
                u64 slot = at + f + (i < ratio ? 0 : d);
                slots.kv[i] = kv_state[slot];
                slots.score[i] = score_state[slot];
                if (!IN_RING && i >= ratio) {
                    moved.kv[i - ratio] = kv_state[at + f];
                    moved.score[i - ratio] = score_state[at + f];
                }
                at += i < ratio && first ? 0 : features;
                if (IN_RING && at == end) at = 0;
            }
        }
        Token low = take(row, token, now.phase, features, f), high = take(row, token, now.phase, features, d + f);
        keep(row, place + f, low);
        keep(row, place + d + f, high);
        if (!ends) continue;
        slots.kv[SLOTS - 1] = high.kv;
        slots.score[SLOTS - 1] = high.score;
        if (!IN_RING) {
            moved.kv[ratio - 1] = low.kv;
            moved.score[ratio - 1] = low.score;
#pragma unroll
            for (int i = 0; i < ratio; i++) {
                keep(row, i * features + f, {moved.kv[i], moved.score[i]});
                keep(row, i * features + d + f, {slots.kv[ratio + i], slots.score[ratio + i]});
            }
        }
#pragma unroll
        for (int i = 0; i < ratio; i++) {
            if (first) slots.kv[i] = 0.0f, slots.score[i] = -F32_INF;
        }
        float most = -F32_INF;
#pragma unroll
        for (int i = 0; i < SLOTS; i++) most = fmaxf(most, slots.score[i]);
        float numerator = 0.0f, denominator = 0.0f;
#pragma unroll
        for (int i = 0; i < SLOTS; i++) {
            float weight = weigh(slots.score[i], most);
            denominator = __fadd_rn(denominator, weight);
            numerator = __fmaf_rn(weight, slots.kv[i], numerator);
        }
        c[f] = pooled(numerator, denominator);
    }
}

// 32 features of CHUNK slots of a window.
struct Tile {
    float scores[CHUNK][WARP], values[CHUNK][WARP];
};

// Asks for the tile's slots of a warp, of features from f on: all but the window's last, which the token itself brings.
static __device__ __forceinline__ void fetch(const Row& row, u32 oldest, u32 chunk, int f, Tile* tile) {
    u32 rows = row.state_rows;
    int count = (int)(row.ratio - 1 - chunk);  // slots of the state from the chunk on
    const float* kv_state = global<float>(row.kv_state) + f;
    const float* score_state = global<float>(row.score_state) + f;
    u64 d = row.d;
    auto at = [&](int slot) {
        u32 place = oldest + chunk + slot;
        return (place < rows ? place : place - rows) * d;
    };
    if ((row.kv_state | row.score_state) % 16 == 0) {
        // A quarter of the warp's lanes is a slot's features, four at a time.
        int column = lane() % 8 * 4;
#pragma unroll
        for (int i = 0; i < SLOTS; i += 4) {
            int slot = warp() * SLOTS + i + lane() / 8;
            if (slot >= count) break;
            copy_async<16>(&tile->scores[slot][column], score_state + at(slot) + column);
            copy_async<16>(&tile->values[slot][column], kv_state + at(slot) + column);
        }
    } else {
#pragma unroll 1
        for (int slot = warp() * SLOTS; slot < min(warp() * SLOTS + SLOTS, count); slot++) {
            copy_async<4>(&tile->scores[slot][lane()], score_state + at(slot) + lane());
            copy_async<4>(&tile->values[slot][lane()], kv_state + at(slot) + lane());
        }
    }
    end_copies();
}

// The largest score of a warp's slots beyond the first chunk, where a window has more.
static __device__ float most_of_later_chunks(const Row& row, u32 oldest, int f) {
    float most = -F32_INF;
#pragma unroll 1
    for (u32 slot = CHUNK + warp(); slot + 1 < row.ratio; slot += PLAIN_WARPS) {
        u32 place = oldest + slot;
        if (place >= row.state_rows) place -= row.state_rows;
        most = fmaxf(most, global<float>(row.score_state)[(u64)place * row.d + f]);
    }
    return most;
}

// Blocks that do not overlap: 32 features at a time, the parts in turn; while a tile is pooled the next one comes.
static __device__ __forceinline__ void pool_plain(const Row& row, u32 token, Place now, bool ends, float* c, Tile* tiles, Meeting& meeting) {
    __shared__ float mosts[PLAIN_WARPS][WARP];
    u32 ratio = row.ratio, own = now.phase % CHUNK;
    u32 oldest = row.ring ? before(row, now, ratio - 1) : 0;
    int d = row.d, stride = parts() * WARP, first = warp() * SLOTS;
    if (ends) fetch(row, oldest, 0, part() * WARP, tiles);
    for (int base = part() * WARP, n = 0; base < d; base += stride, n++) {
        int f = base + lane();
        Tile* tile = tiles + n % 2;
        if (ends && base + stride < d) fetch(row, oldest, 0, base + stride, tiles + (n + 1) % 2);
        else end_copies();
        // The warp whose slot the token is.
        bool mine = warp() == own / SLOTS;
        Token brought = {0.0f, -F32_INF};
        if (mine) {
            brought = take(row, token, now.phase, d, f);
            keep(row, (u64)(row.ring ? now.row : now.phase) * d + f, brought);
        }
        if (!ends) continue;
        float most = ratio > CHUNK ? fmaxf(brought.score, most_of_later_chunks(row, oldest, f)) : brought.score;
        float numerator = 0.0f, denominator = 0.0f;
        for (u32 chunk = 0; chunk < ratio; chunk += CHUNK) {
            int count = min(ratio - chunk, (u32)CHUNK);
            if (chunk == 0) {
                wait_for_copies<1>();
            } else {
                fetch(row, oldest, chunk, base, tile);
                wait_for_copies<0>();
            }
            __syncwarp();
            if (mine && chunk + own + 1 == ratio) {
                tile->scores[own][lane()] = brought.score;
                tile->values[own][lane()] = brought.kv;
            }
            if (chunk == 0) {
#pragma unroll
                for (int i = 0; i < SLOTS; i++) {
                    if (first + i < count) most = fmaxf(most, tile->scores[first + i][lane()]);
                }
                mosts[warp()][lane()] = most;
                __syncthreads();
#pragma unroll 8
                for (int w = 0; w < PLAIN_WARPS; w++) most = fmaxf(most, mosts[w][lane()]);
            }
#pragma unroll 4
            for (int i = 0; i < SLOTS; i++) {
                float* score = &tile->scores[first + i][lane()];
                if (first + i < count) *score = weigh(*score, most);
            }
            __syncthreads();
            if (warp() == 0) {
#pragma unroll 8
                for (int i = 0; i < count; i++) {
                    float weight = tile->scores[i][lane()];
                    denominator = __fadd_rn(denominator, weight);
                    numerator = __fmaf_rn(weight, tile->values[i][lane()], numerator);
                }
            }
            __syncthreads();
        }
        if (warp() == 0) {
            float value = pooled(numerator, denominator);
            if (parts() == 1) c[f] = value;
            else meeting.send(&c[f], value);
        }
    }
}

enum Kind { PLAIN, RING, SHIFTED };

template <Kind KIND>
static __device__ __forceinline__ void compress(const Row* table, u32 r) {
    // f32 [d], the norm; f32 [d], what is pooled; two tiles.
    extern __shared__ float4 shared[];
    __shared__ Row row;
    __shared__ Meeting meeting;
    const int words = sizeof(Row) / sizeof(u32);
    if (threadIdx.x < words) ((u32*)&row)[threadIdx.x] = ((const u32*)&table[r])[threadIdx.x];
    bool one = KIND != PLAIN || parts() == 1, first = KIND != PLAIN || part() == 0;
    if (one) __syncthreads();
    else meeting.begin();
    float* norms = (float*)shared;
    float* c = norms + row.d;
    dependents_may_start();
    wait_for_predecessors();
    if (row.d == 0) return;
    // Asked for now, needed last.
    if (first && row.phase + row.tokens >= row.ratio) {
        for (int f = threadIdx.x; f < row.d; f += blockDim.x) copy_async<4>(&norms[f], global<float>(row.norm) + f);
        end_copies();
    }
    bf16* out = global<bf16>(row.out);
    u32 faults = 0, blocks = 0;
    Place now = {row.start, row.phase, row.place};
    for (u32 token = 0; token < row.tokens; token++) {
        // What other threads kept of the tokens before is in the state.
        if (KIND == PLAIN && token > 0) __syncthreads();
        bool ends = now.phase + 1 == row.ratio;
        // Nobody still reads what was pooled of the block before.
        if (ends && blocks > 0) {
            if (one) __syncthreads();
            else meeting.again();
        }
        if (KIND != PLAIN) pool_overlapped<KIND == RING>(row, token, now, ends, c);
        else pool_plain(row, token, now, ends, c, (Tile*)(c + row.d), meeting);
        if (ends) {
            wait_for_copies<0>();
            if (first) {
                if (!one) meeting.wait(blocks, row.d * sizeof(float));
                __syncthreads();
                faults |= normalise(row, norms, c, out);
            }
            blocks++;
        } else if (row.every_token && first) {
            for (int f = threadIdx.x; f < row.d; f += blockDim.x) out[f] = 0;
        }
        if (ends || row.every_token) out += row.d;
        now.position++;
        if (++now.phase == row.ratio) now.phase = 0;
        if (++now.row == row.state_rows) now.row = 0;
    }
    if (first && threadIdx.x == 0 && row.status) *global<u32>(row.status) = faults;
}

extern "C" __global__ void __launch_bounds__(PLAIN_WARPS * WARP, 2) compress_plain(const Row* table, char*, u32 blocks_x) {
    compress<PLAIN>(table, BLOCK_Y);
}

extern "C" __global__ void __launch_bounds__(OVERLAPPED_THREADS, 2) compress_ring(const Row* table, char*, u32 blocks_x) {
    compress<RING>(table, BLOCK_Y);
}

extern "C" __global__ void __launch_bounds__(OVERLAPPED_THREADS, 1) compress_shifted(const Row* table, char*, u32 blocks_x) {
    compress<SHIFTED>(table, BLOCK_Y);
}
