// Fast index scores: keys are streamed once, the matrix unit multiplies them with all heads, and no product leaves the registers.
//
// A block takes its part of the work list (index_scores.cuh) tile by tile, 64 keys each. Four warps bring keys into a ring of
// tiles, and a row's queries before them; two warpgroups take the tiles in turn; one warp keeps the status words, out of
// everybody's way. A block owns the scores of its keys and never materialises their dot products: a thread has those of two keys
// with a quarter of the heads, adds up its share of the two scores in the order of the heads, and two shuffles add the four
// shares. A key's score is a function of that key, its query and the weights alone, by the same instructions whatever tile, block
// or row list it is in. So the law of rows holds by construction, wherever a tile runs.
//
// Keys and queries lie in shared memory as the matrix unit reads both: the halves of all rows of a tile one after the other, 128
// bytes a row, swizzled. Copies of 16 bytes put them there: with few keys they are sooner there than bulk copies or tensor copies.

#define GROUPS 2
#define GROUP 128
#define MATH (GROUPS * GROUP)              // threads that multiply
#define BRING 128                          // threads that bring keys and queries; a warp more keeps status words
#define THREADS (MATH + BRING + WARP)
#define TILE 64
#define KEY_BYTES (INDEX_DIM * 2)
#define HALF_BYTES (KEY_BYTES / 2)
#define STAGE_BYTES (TILE * KEY_BYTES)
// A multiple of GROUPS: a place is always the same group's, which so sees every change of its barriers.
#define STAGES 4
// Of a multiprocessor: two of one launch, or one of this launch and one of the next, which gets ready meanwhile.
#define BLOCKS 2
#define KEPT (12 << 20)                    // bytes
#define PIECES (INDEX_DIM / 8)             // 16 bytes each
#define AT_ONCE (BRING / PIECES)           // rows that the bringing threads copy at once
#define STEPS (INDEX_DIM / 16)             // of a matrix instruction each

// What a block has in shared memory behind its queries and its tiles.
struct Ring {
    Table head;
    u64 full[STAGES], empty[STAGES];
    // Of a part, and of the next: its queries and weights are there; it has its scores; its place is free.
    u64 asked[2], scored[2], answered[2];
    float weights[2][64];
    u32 bad[2];  // whether a score is
};

static __device__ __forceinline__ void copy4(u32 to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

// How long lines stay in the L2 cache. Keys, which are read once, leave it first.
static __device__ __forceinline__ u64 for_keys() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
// About KEPT bytes of scores stay for whoever selects from them, and for the next call that writes there: their way to memory and
// back would hold up the keys. They are the last to leave, used or not, so KEPT is a fifth of the cache.
static __device__ __forceinline__ u64 for_scores(i64 tiles) {
    u64 policy;
    float part = fminf(1.0f, (float)KEPT / (float)(tiles * (TILE * 4)));
    asm volatile("createpolicy.fractional.L2::evict_last.L2::evict_first.b64 %0, %1;" : "=l"(policy) : "f"(part));
    return policy;
}
static __device__ __forceinline__ void store(float* to, float x, u64 policy) {
    asm volatile("st.global.L2::cache_hint.f32 [%0], %1, %2;" ::"l"(to), "f"(x), "l"(policy) : "memory");
}
static __device__ __forceinline__ void copy_keys(u32 to, const void* from, u64 policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(policy) : "memory");
}
// Without a policy: what all blocks read at once comes later with any.
static __device__ __forceinline__ void copy_query(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// Rows to bring, `there` of them.
struct Source {
    const char* from;
    int there;
};

// Rows may start at any address of a bf16: those that 16 bytes cannot be read from take a slower way to the same bits.
static __device__ __forceinline__ bool whole(const char* from) { return ((u64)from & 15) == 0; }

static __device__ __forceinline__ void store_shared(u32 to, uint4 x) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

static __device__ __forceinline__ uint4 gather(const char* from) {
    const bf16* x = (const bf16*)from;
    u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) words[i] = x[2 * i] | (u32)x[2 * i + 1] << 16;
    return make_uint4(words[0], words[1], words[2], words[3]);
}

// ROWS rows, as far as they are there, by the bringing threads: a thread has one piece of every AT_ONCE-th. All arrive at the barrier.
template <int ROWS, class Copy>
static __device__ __forceinline__ void bring_rows(u32 place, Source source, u32 barrier, Copy copy) {
    int i = threadIdx.x - MATH, row = i / PIECES, piece = i % PIECES;
    u32 half = place + piece / 8 * (ROWS * HALF_BYTES);
    auto to = [&](int n) { return half + (row + n) * HALF_BYTES + (piece % 8 ^ (row + n) % 8) * 16; };
    auto from = [&](int n) { return source.from + (n * PIECES + i) * 16; };
    if (whole(source.from)) {
#pragma unroll
        for (int n = 0; n < ROWS; n += AT_ONCE)
            if (n + row < source.there) copy(to(n), from(n));
        barrier_arrive_copied(barrier);
    } else {
#pragma unroll 1
        for (int n = 0; n < ROWS; n += AT_ONCE)
            if (n + row < source.there) store_shared(to(n), gather(from(n)));
        copies_wait();
        barrier_arrive(barrier);
    }
}

// The warps that bring.
template <int HEADS> static __device__ __forceinline__ void bring(const Row* rows, Ring* ring, u32 queries, u32 stages) {
    const Table* t = &ring->head;
    u32 full = shared_address(ring->full), empty = shared_address(ring->empty), n = 0;
    u32 asked = shared_address(ring->asked), answered = shared_address(ring->answered), parts = 0;
    int i = threadIdx.x - MATH;
    u64 policy = for_keys();
    auto copy = [&](u32 to, const char* from) { copy_keys(to, from, policy); };
    each_part(t, rows, [&](int, const Row& row, i64 first, int keys) {
        wait_for_predecessors();
        u32 q = parts % 2;
        barrier_wait(answered + 8 * q, parts++ / 2 % 2 ^ 1);
        if (i < HEADS) copy4(shared_address(ring->weights[q] + i), (const float*)t->weights + row.query * HEADS + i);
        const char* query = (const char*)t->q + row.query * (HEADS * KEY_BYTES);
        bring_rows<HEADS>(queries + q * (HEADS * KEY_BYTES), {query, HEADS}, asked + 8 * q, copy_query);
        const char* from = (const char*)row.keys + first * KEY_BYTES;
        for (int k = 0; k < keys; k += TILE, n++, from += STAGE_BYTES) {
            u32 place = n % STAGES;
            barrier_wait(empty + 8 * place, n / STAGES % 2 ^ 1);
            bring_rows<TILE>(stages + place * STAGE_BYTES, {from, keys - k}, full + 8 * place, copy);
        }
    });
}

// While launches before this one end, memory has less and less to do: a block that waits for them asks for its first tiles.
static __device__ __forceinline__ void ask_ahead(const Row& row, i64 first, int keys, u32 tiles) {
    const char* from = (const char*)row.keys + first * KEY_BYTES;
    u32 bytes = min((u32)keys, tiles * TILE) * KEY_BYTES;
    if (lane() == 0 && bytes > 0 && whole(from)) prefetch(from, bytes);
}

// Where a block has a tile at most, there is room for a selection from these scores, the next launch, and it is to be ready when they end.
static __device__ __forceinline__ bool next_at_once(const Table* t) { return !t->out && t->per <= 1 && t->longer == 0; }

// The warp of the status words. It opens a part before it waits for the scores of the one before: no score waits for it.
static __device__ __forceinline__ void keep_status(Table* t, Ring* ring) {
    u32 scored = shared_address(ring->scored), answered = shared_address(ring->answered), parts = 0;
    int last = 0;
    auto close = [&] {
        u32 n = parts - 1, q = n % 2;
        barrier_wait(scored + 8 * q, n / 2 % 2);
        if (lane() == 0) {
            if (ring->bad[q]) report_bad(t, last);
            ring->bad[q] = 0;
            barrier_arrive(answered + 8 * q);
        }
        __syncwarp();
    };
    if (next_at_once(&ring->head)) dependents_may_start();
    each_part(&ring->head, t->row, [&](int r, const Row& row, i64 first, int keys) {
        if (parts == 0) ask_ahead(row, first, keys, ring->head.ahead);
        wait_for_predecessors();
        // Else not before: a launch that waits while this one does would take places from what comes first.
        dependents_may_start();
        if (lane() == 0) {
            clear(t, r);
            open_part(t, r);
        }
        __syncwarp();
        if (parts > 0) close();
        parts++, last = r;
    });
    // Also where there was no part: the launch must not end before those that it waits for.
    wait_for_predecessors();
    clear_empty(t);
    if (parts > 0) close();
}

// Where the 16 features of a step start in an operand of so many rows.
static __device__ __forceinline__ u64 step(int s, int rows) { return further(s / 4 * rows * HALF_BYTES + s % 4 * 32); }

// The other warps: the scores of every other tile each.
template <int HEADS>
static __device__ __forceinline__ void score(const Row* rows, char* scratch, Ring* ring, u32 queries, u32 stages) {
    constexpr int COLUMNS = HEADS / 4;  // heads of a thread: 8n + 2p and the one after
    const Table* t = &ring->head;
    u32 full = shared_address(ring->full), empty = shared_address(ring->empty), n = 0;
    u32 asked = shared_address(ring->asked), scored = shared_address(ring->scored), parts = 0;
    u64 policy = for_scores(t->tiles);
    int group = threadIdx.x / GROUP, p = lane() % 4, slot = 16 * (warp() % 4) + lane() / 4;
    each_part(&ring->head, rows, [&](int, const Row& row, i64 first, int keys) {
        wait_for_predecessors();
        u32 q = parts % 2;
        barrier_wait(asked + 8 * q, parts++ / 2 % 2);
        const float* weights = ring->weights[q] + 2 * p;
        u64 query = operand128(queries + q * (HEADS * KEY_BYTES), 16);
        float* out = (t->out ? (float*)t->out : (float*)scratch) + row.out + first;
        bool bad = false;
        for (int k = 0; k < keys; k += TILE, n++) {
            if (n % GROUPS != group) continue;
            u32 place = n % STAGES;
            barrier_wait(full + 8 * place, n / STAGES % 2);
            matrix_sees_shared();
            u64 tile = operand128(stages + place * STAGE_BYTES, 16);
            // Of the keys `slot` and 8 on: first key's, second key's of two heads, then of the next two.
            float dot[2 * COLUMNS] = {};
            matrix_start();
#pragma unroll
            for (int s = 0; s < STEPS; s++) multiply(dot, tile + step(s, TILE), query + step(s, HEADS));
            matrix_commit();
            matrix_wait<0>();
            if (lane() == 0) barrier_arrive(empty + 8 * place);
            // The relu would hide a NaN or -inf: `check` is 0, or NaN once a dot product is not finite. A weight that is not finite
            // makes a score that is not, whatever it meets.
            float score[2] = {}, check[2] = {};
#pragma unroll
            for (int i = 0; i < 2 * COLUMNS; i++) {
                int second = i / 2 % 2;
                check[second] = __fmaf_rn(dot[i], 0.0f, check[second]);
                score[second] = __fmaf_rn(fmaxf(dot[i], 0.0f), weights[i / 4 * 8 + i % 2], score[second]);
            }
#pragma unroll
            for (int second = 0; second < 2; second++) {
                score[second] = __fadd_rn(score[second], check[second]);
                score[second] = __fadd_rn(score[second], __shfl_xor_sync(FULL, score[second], 1));
                score[second] = __fadd_rn(score[second], __shfl_xor_sync(FULL, score[second], 2));
            }
            // Two of the four threads have a key to write.
            float mine = p == 0 ? score[0] : score[1];
            int key = k + slot + 8 * p;
            if (p < 2 && key < keys) {
                bool fine = finite(mine);
                bad |= !fine;
                store(out + key, fine ? mine : -F32_INF, policy);
            }
        }
        if (bad) atomicOr(&ring->bad[q], 1u);
        barrier_arrive(scored + 8 * q);
        __syncwarp();
    });
}

template <int HEADS> static __device__ __forceinline__ void index_scores(Table* t, char* scratch) {
    extern __shared__ __align__(1024) char shared[];
    u32 queries = shared_address(shared), stages = queries + 2 * HEADS * KEY_BYTES;
    Ring* ring = (Ring*)(shared + 2 * HEADS * KEY_BYTES + STAGES * STAGE_BYTES);
    // All of it at once: field by field it would wait for memory again and again.
    if (threadIdx.x < sizeof(Table) / 4) ((u32*)&ring->head)[threadIdx.x] = ((const u32*)t)[threadIdx.x];
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(shared_address(&ring->full[s]), BRING);
            barrier_init(shared_address(&ring->empty[s]), GROUP / WARP);
        }
        for (int q = 0; q < 2; q++) {
            barrier_init(shared_address(&ring->asked[q]), BRING);
            barrier_init(shared_address(&ring->scored[q]), MATH);
            barrier_init(shared_address(&ring->answered[q]), 1);
            ring->bad[q] = 0;
        }
        barriers_ready();
    }
    __syncthreads();
    if (blockIdx.x >= ring->head.busy) return;
    if (threadIdx.x < MATH) {
        score<HEADS>(t->row, scratch, ring, queries, stages);
    } else if (threadIdx.x < MATH + BRING) {
        bring<HEADS>(t->row, ring, queries, stages);
    } else {
        keep_status(t, ring);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) index_scores_64(Table* t, char* scratch, u32) {
    index_scores<64>(t, scratch);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) index_scores_32(Table* t, char* scratch, u32) {
    index_scores<32>(t, scratch);
}
