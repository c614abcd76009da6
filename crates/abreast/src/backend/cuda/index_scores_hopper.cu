// Fast index scores: keys are streamed once, the matrix unit multiplies them with all heads, and no product leaves the registers.
//
// A block takes its part of the work list (index_scores.cuh) tile by tile, 64 keys each. One warp brings keys into a ring of
// tiles, two warpgroups take the tiles in turn, one warp keeps the status words, out of everybody's way. A block owns the scores
// of its keys and never materialises their dot products: a thread has those of two keys with a quarter of the heads, adds up its
// share of the two scores in the order of the heads, and two shuffles add the four shares. A key's score is a function of that
// key, its query and the weights alone, by the same instructions whatever tile, block or row list it is in. So the law of rows
// holds by construction, wherever a tile runs.
//
// Keys come by bulk copies of whole rows as they lie in memory, two halves of a tile beside each other. They enter the matrix unit
// through registers, where a thread may hold any features as long as the queries have the same order: 16 bytes of a key
// are one load. Half a tile is displaced by 64 bytes, so that eight threads that load at once find eight different banks.

#define GROUPS 2
#define GROUP 128
#define MATH (GROUPS * GROUP)              // threads that multiply; two warps more bring keys and keep status words
#define THREADS (MATH + 2 * WARP)
#define TILE 64
#define HALF (TILE / 2)
#define KEY_BYTES (INDEX_DIM * 2)
#define HALF_PLACE (HALF * KEY_BYTES + 64)
#define STAGE_BYTES (2 * HALF_PLACE)
// A multiple of GROUPS: a place is always the same group's, which so sees every change of its barriers.
#define STAGES 4
#define BLOCKS 2                           // of a multiprocessor
#define PIECES (INDEX_DIM / 8)             // 16 bytes each
#define STEPS (INDEX_DIM / 16)             // of a matrix instruction each

// What a block has in shared memory behind its queries and its tiles.
struct Ring {
    u64 full[STAGES], empty[STAGES];
    float weights[64];
    u32 opened;  // parts of this block
};

static __device__ __forceinline__ void bulk_copy(u32 to, const char* from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(barrier)
                 : "memory");
}

// A tile of `keys` keys; the barrier passes when they are there.
static __device__ __forceinline__ void bulk_copies(char* place, const char* from, int keys, u32 barrier) {
    u32 to = shared_address(place), low = min(keys, HALF) * KEY_BYTES, all = keys * KEY_BYTES;
    barrier_expect(barrier, all);
    bulk_copy(to, from, low, barrier);
    if (all > low) bulk_copy(to + HALF_PLACE, from + low, all - low, barrier);
}

static __device__ __forceinline__ void sync_math() { asm volatile("bar.sync 1, %0;" ::"n"(MATH) : "memory"); }

// Rows may start at any address of a bf16: those that 16 bytes cannot be read from take a slower way to the same bits.
static __device__ __forceinline__ bool whole(const char* from) { return ((u64)from & 15) == 0; }

static __device__ __forceinline__ uint4 gather(const char* from) {
    const bf16* x = (const bf16*)from;
    u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) words[i] = x[2 * i] | (u32)x[2 * i + 1] << 16;
    return make_uint4(words[0], words[1], words[2], words[3]);
}

// Where a matrix in shared memory starts: rows of 16 bytes, 8 of them in a row, then the next 8; the next 8 features `lead` bytes on.
static __device__ __forceinline__ u64 matrix(u32 address, u32 lead) {
    return (u64)(address >> 4) | (u64)(lead >> 4) << 16 | (u64)(128 >> 4) << 32;
}

// sum[64 keys][heads] += keys[64][16] * queries[heads][16]
static __device__ __forceinline__ void multiply(float (&sum)[32], const u32* keys, u64 queries) {
    asm volatile(MULTIPLY(64) "{" LIST32 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 0;\n"
                 : D32(sum)
                 : "r"(keys[0]), "r"(keys[1]), "r"(keys[2]), "r"(keys[3]), "l"(queries));
}

static __device__ __forceinline__ void multiply(float (&sum)[16], const u32* keys, u64 queries) {
    asm volatile(MULTIPLY(32) "{" TEN() ", %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, 1, 1, 1, 0;\n"
                 : D8(sum, 0), D8(sum, 8)
                 : "r"(keys[0]), "r"(keys[1]), "r"(keys[2]), "r"(keys[3]), "l"(queries));
}

// A row's queries, in the order of the features that a key's fragments have: thread `p` of four has piece 4i+p of a key, and its
// four words are two of step 2i and two of step 2i+1.
template <int HEADS> static __device__ __forceinline__ void stage_queries(const char* from, char* to) {
    constexpr int EACH = HEADS * PIECES / MATH;
    // A thread's n-th piece: which head's, of which four pieces, the p-th of the four.
    int p = threadIdx.x % 4;
    auto head = [](int n) { return (n * MATH + threadIdx.x) / 4 % HEADS; };
    auto four = [](int n) { return (n * MATH + threadIdx.x) / 4 / HEADS; };
    auto source = [&](int n) { return from + head(n) * KEY_BYTES + (4 * four(n) + p) * 16; };
    auto store = [&](int n, uint4 x) {
        u32* place = (u32*)(to + (4 * four(n) * HEADS + head(n)) * 16 + p * 4);
        place[0] = x.x, place[HEADS * 4] = x.y, place[HEADS * 8] = x.z, place[HEADS * 12] = x.w;
    };
    if (whole(from)) {
        uint4 pieces[EACH];
#pragma unroll
        for (int n = 0; n < EACH; n++) pieces[n] = *(const uint4*)source(n);
#pragma unroll
        for (int n = 0; n < EACH; n++) store(n, pieces[n]);
    } else {
#pragma unroll 1
        for (int n = 0; n < EACH; n++) store(n, gather(source(n)));
    }
}

// The loading warp.
static __device__ __forceinline__ void bring(const Table* t, Ring* ring, char* stages) {
    u32 full = shared_address(ring->full), empty = shared_address(ring->empty), n = 0;
    each_part(t, [&](int, const Row& row, i64 first, int keys) {
        wait_for_predecessors();
        const char* from = (const char*)row.keys + first * KEY_BYTES;
        for (int k = 0; k < keys; k += TILE, from += TILE * KEY_BYTES, n++) {
            u32 place = n % STAGES;
            char* to = stages + place * STAGE_BYTES;
            int here = min(TILE, keys - k);
            barrier_wait(empty + 8 * place, n / STAGES % 2 ^ 1);
            if (whole(from)) {
                if (lane() == 0) bulk_copies(to, from, here, full + 8 * place);
            } else {
#pragma unroll 4
                for (int i = lane(); i < here * PIECES; i += WARP) {
                    int slot = i / PIECES;
                    *(uint4*)(to + slot / HALF * HALF_PLACE + slot % HALF * KEY_BYTES + i % PIECES * 16) = gather(from + i * 16);
                }
                // A later copy into this place comes after these writes.
                matrix_sees_shared();
                __syncwarp();
                if (lane() == 0) barrier_arrive(full + 8 * place);
            }
        }
    });
}

// The warp of the status words.
static __device__ __forceinline__ void keep_status(Table* t, Ring* ring) {
    u32 opened = 0;
    each_part(t, [&](int r, const Row&, i64, int) {
        wait_for_predecessors();
        if (lane() == 0) {
            clear(t, r);
            open_part(t, r);
            __threadfence_block();
            *(volatile u32*)&ring->opened = ++opened;
        }
        __syncwarp();
    });
    // Also where there was no part: the launch must not end before those that it waits for.
    wait_for_predecessors();
    clear_empty(t);
}

// The other warps: the scores of every other tile each.
template <int HEADS>
static __device__ __forceinline__ void score(Table* t, char* scratch, Ring* ring, char* queries, char* stages) {
    constexpr int COLUMNS = HEADS / 4;  // heads of a thread: 8n + 2p and the one after
    u32 full = shared_address(ring->full), empty = shared_address(ring->empty);
    int group = threadIdx.x / GROUP, p = lane() % 4, half = lane() / 4 % 2, slot = 8 * (warp() % 4) + lane() / 8;
    u64 matrices = matrix(shared_address(queries), HEADS * 16);
    u32 n = 0, parts = 0;
    const float* weights = ring->weights + 2 * p;
    each_part(t, [&](int r, const Row& row, i64 first, int keys) {
        wait_for_predecessors();
        // Nobody multiplies with the row before any more.
        if (parts++ > 0) sync_math();
        if (threadIdx.x < HEADS) ring->weights[threadIdx.x] = ((const float*)t->weights)[row.query * HEADS + threadIdx.x];
        stage_queries<HEADS>((const char*)t->q + row.query * (HEADS * KEY_BYTES), queries);
        matrix_sees_shared();
        sync_math();
        bool bad = false;
        float* out = (t->out ? (float*)t->out : (float*)scratch) + row.out + first;
        for (int k = 0; k < keys; k += TILE, n++) {
            if (n % GROUPS != group) continue;
            // Two keys of the tile, `slot` and four on, four pieces of each.
            u32 fragments[STEPS][4];
            u32 place = n % STAGES;
            barrier_wait(full + 8 * place, n / STAGES % 2);
            const char* at = stages + place * STAGE_BYTES + half * HALF_PLACE + slot * KEY_BYTES + p * 16;
#pragma unroll
            for (int i = 0; i < 2 * (PIECES / 4); i++) {
                int second = i % 2, step = i / 2 * 2;
                uint4 x = *(const uint4*)(at + second * 4 * KEY_BYTES + i / 2 * 64);
                fragments[step][second] = x.x, fragments[step][2 + second] = x.y;
                fragments[step + 1][second] = x.z, fragments[step + 1][2 + second] = x.w;
            }
            __syncwarp();
            if (lane() == 0) barrier_arrive(empty + 8 * place);
            float dot[2 * COLUMNS] = {};  // first key's, second key's of two heads, then of the next two
            matrix_start();
#pragma unroll
            for (int s = 0; s < STEPS; s++) multiply(dot, fragments[s], matrices + s * (2 * HEADS * 16 >> 4));
            matrix_commit();
            matrix_wait<0>();
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
            int key = k + half * HALF + slot + 4 * p;
            if (p < 2 && key < keys) {
                bool fine = finite(mine);
                bad |= !fine;
                out[key] = fine ? mine : -F32_INF;
            }
        }
        if (bad) {
            while (*(volatile u32*)&ring->opened < parts) {}
            report_bad(t, r);
        }
        __syncwarp();
    });
}

template <int HEADS> static __device__ __forceinline__ void index_scores(Table* t, char* scratch) {
    extern __shared__ __align__(128) char shared[];
    char* queries = shared;  // [piece][head][16 bytes]
    char* stages = shared + HEADS * KEY_BYTES;
    Ring* ring = (Ring*)(stages + STAGES * STAGE_BYTES);
    dependents_may_start();
    if (blockIdx.x >= t->busy) return;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(shared_address(&ring->full[s]), 1);
            barrier_init(shared_address(&ring->empty[s]), GROUP / WARP);
        }
        ring->opened = 0;
        barriers_ready();
    }
    __syncthreads();
    if (threadIdx.x < MATH) {
        score<HEADS>(t, scratch, ring, queries, stages);
    } else if (threadIdx.x < MATH + WARP) {
        bring(t, ring, stages);
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
