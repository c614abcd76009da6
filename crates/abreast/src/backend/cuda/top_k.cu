// Exact top-k: one block a row. A radix search from the top byte finds the k-th largest score; what is above it is taken,
// of what equals it the first ones in order; then the chosen are sorted. The order is total, so the answer is unique.

struct Row {
    u64 scores;  // f32 [n]; with `in_scratch` an offset in bytes
    u64 out;     // first slot in out
    i64 n;       // -1: a padding entry that writes nothing
    int offset, pad;
};

struct Table {
    u64 out;     // i32
    u64 status;  // u32 [rows], or 0
    int k, rows, in_scratch, pad;
    Row row[1];
};

#define THREADS 1024
#define WARPS (THREADS / WARP)

// Larger for the better score; 0 for one that is not finite. Adding 0 makes one zero of the two.
static __device__ __forceinline__ u32 ordered(float score) {
    if (!finite(score)) return 0;
    u32 bits = __float_as_uint(__fadd_rn(score, 0.0f));
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// The sum of `value` over the threads before this one; `*total` over all.
static __device__ __forceinline__ int before(int value, int* warps, int* total) {
    const int sum = sum_to_lane(value);
    __syncthreads();
    if (lane() == WARP - 1) warps[warp()] = sum;
    __syncthreads();
    int base = 0, all = 0;
#pragma unroll 4
    for (int w = 0; w < WARPS; w++) {
        if (w < warp()) base += warps[w];
        all += warps[w];
    }
    *total = all;
    return base + sum - value;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) top_k(const Table* t, char* scratch, u32 blocks_x) {
    extern __shared__ u64 chosen[];  // k rounded up to a power of two
    __shared__ int histogram[256], warps[WARPS], digit, rest;
    const Row* row = &t->row[BLOCK_X];
    if (row->n < 0) return;
    const float* scores = (const float*)(t->in_scratch ? scratch + row->scores : (char*)row->scores);
    i64 n = row->n;
    int k = t->k;

    // The k-th largest, byte by byte: `prefix` are the bytes found so far, `need` how many are left to find below it.
    u32 prefix = 0;
    int need = k;
    bool all_finite = true;
    bool enough = true;
    // Fewer than k selectable: `enough` turns false, and all of them are taken.
    for (int shift = 24; shift >= 0 && enough; shift -= 8) {
        for (int i = threadIdx.x; i < 256; i += THREADS) histogram[i] = 0;
        __syncthreads();
        for (i64 i = threadIdx.x; i < n; i += THREADS) {
            u32 key = ordered(scores[i]);
            all_finite &= key != 0;
            if (key && (shift == 24 || key >> (shift + 8) == prefix >> (shift + 8))) atomicAdd(&histogram[key >> shift & 255], 1);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int left = need, found = -1;
#pragma unroll 4
            for (int d = 255; d >= 0; d--) {
                if (found < 0 && histogram[d] >= left) found = d;
                if (found < 0) left -= histogram[d];
            }
            digit = found;
            rest = left;
        }
        __syncthreads();
        enough = digit >= 0;
        prefix |= (u32)max(digit, 0) << shift;
        need = rest;
        __syncthreads();
    }
    if (!enough) need = 0;
    u32 bound = enough ? prefix : 0;

    // In order of the index, THREADS scores at a time: above the bound all, equal to it the first `need`.
    int taken = 0, equal = 0;
    for (i64 first = 0; first < n; first += THREADS) {
        i64 i = first + threadIdx.x;
        u32 key = i < n ? ordered(scores[i]) : 0;
        int ties, hits;
        int tie = before(key && key == bound, warps, &ties);
        bool take = key > bound || (key && key == bound && equal + tie < need);
        int place = before(take, warps, &hits);
        if (take) chosen[taken + place] = (u64)key << 32 | (u32)~(u32)i;
        taken += hits;
        equal += ties;
    }
    int size = 1;
    while (size < k) size *= 2;
    __syncthreads();
    for (int i = taken + threadIdx.x; i < size; i += THREADS) chosen[i] = 0;

    // Bitonic sort, the best first.
    for (int run = 2; run <= size; run *= 2) {
        for (int step = run / 2; step > 0; step /= 2) {
            __syncthreads();
            for (int i = threadIdx.x; i < size / 2; i += THREADS) {
                int a = 2 * i - (i & (step - 1)), b = a + step;
                bool descending = !(a & run);
                u64 x = chosen[a], y = chosen[b];
                if ((x < y) == descending) {
                    chosen[a] = y;
                    chosen[b] = x;
                }
            }
        }
    }
    __syncthreads();
    int* out = (int*)t->out + row->out;
    for (int i = threadIdx.x; i < k; i += THREADS) out[i] = i < taken ? (int)(u32)~(u32)chosen[i] + row->offset : NO_INDEX;
    bool finite_all = !__syncthreads_or(!all_finite);
    if (threadIdx.x == 0 && t->status && !finite_all) ((u32*)t->status)[BLOCK_X] |= NONFINITE_SCORE;
}

extern "C" __global__ void top_k_start(const Table* t, char*, u32 blocks_x) {
    int r = BLOCK_X * blockDim.x + threadIdx.x;
    if (r < t->rows && t->status && t->row[r].n >= 0) ((u32*)t->status)[r] = 0;
}
