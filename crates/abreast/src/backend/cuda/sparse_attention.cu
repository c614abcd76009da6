// Reference sparse attention in four steps: check the indices, logits, softmax weights in their place, weighted values.
// Logits [rows][heads][width] lie in scratch; nothing else is materialised.

// What a row's first look found, in scratch before the logits.
struct Found {
    int attended;    // slots that are not skipped; -1: an index is invalid
    u32 suspect;     // a logit or sink was not finite
};

static __device__ __forceinline__ Found* found(char* scratch) { return (Found*)scratch; }

static __device__ __forceinline__ float* logits(const Table* t, char* scratch, int row, int head) {
    float* all = (float*)(scratch + (((u64)t->rows * sizeof(Found) + 255) & ~255ull));
    return all + ((u64)row * t->heads + head) * t->width;
}

// One block a row.
extern "C" __global__ void __launch_bounds__(256) attention_check(const Table* t, char* scratch, u32 blocks_x) {
    const Row* row = &t->row[BLOCK_X];
    __shared__ int attended, invalid;
    if (threadIdx.x == 0) attended = invalid = 0;
    __syncthreads();
    if (row->active) {
        const int* indices = (const int*)row->indices;
        int mine = 0, bad = 0;
        for (int j = threadIdx.x; j < row->width; j += blockDim.x) {
            int index = indices[j];
            mine += index != NO_INDEX;
            bad |= index < NO_INDEX || index >= row->kv_len;
        }
        if (mine) atomicAdd(&attended, mine);
        if (bad) atomicOr(&invalid, 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        found(scratch)[BLOCK_X] = {invalid ? -1 : attended, 0};
        if (row->active && t->status) ((u32*)t->status)[BLOCK_X] = invalid ? INVALID_INDEX : 0;
    }
}

// One block a row and 16 slots; a warp takes 4 slots at a time against 8 heads at a time. Lane l holds partial sum l of
// all 32 pairs; exchanging halves of the pairs between halves of the lanes, five times, is the tree.
#define SLOTS 4
#define HEADS 8

// After the step with distance D, lane l holds the pairs whose number agrees with it in the bits from D up.
template <int D> static __device__ __forceinline__ void exchange(float (&p)[HEADS * SLOTS]) {
    bool upper = lane() & D;
#pragma unroll
    for (int i = 0; i < D; i++) {
        float give = upper ? p[i] : p[i + D], keep = upper ? p[i + D] : p[i];
        p[i] = __fadd_rn(keep, __shfl_xor_sync(FULL, give, D));
    }
}

extern "C" __global__ void __launch_bounds__(128) attention_logits(const Table* t, char* scratch, u32 blocks_x) {
    int r = BLOCK_Y, l = lane();
    const Row* row = &t->row[r];
    if (!row->active || found(scratch)[r].attended <= 0) return;
    int first = (BLOCK_X * 4 + warp()) * SLOTS;
    if (first >= row->width) return;
    const int* indices = (const int*)row->indices;
    const bf16* kv[SLOTS];
    bool take[SLOTS];
#pragma unroll
    for (int s = 0; s < SLOTS; s++) {
        int index = first + s < row->width ? indices[first + s] : NO_INDEX;
        take[s] = index != NO_INDEX;
        kv[s] = (const bf16*)row->kv + (take[s] ? (u64)index : 0) * t->dim;
    }
    for (int head = 0; head < t->heads; head += HEADS) {
        float p[HEADS * SLOTS];
#pragma unroll
        for (int i = 0; i < HEADS * SLOTS; i++) p[i] = 0.0f;
        const bf16* q = (const bf16*)t->q + (row->query * t->heads + head) * (u64)t->dim;
        for (int f = l; f < t->dim; f += WARP) {
            float v[SLOTS];
#pragma unroll
            for (int s = 0; s < SLOTS; s++) v[s] = take[s] ? widen(kv[s][f]) : 0.0f;
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                float x = head + h < t->heads ? widen(q[(u64)h * t->dim + f]) : 0.0f;
#pragma unroll
                for (int s = 0; s < SLOTS; s++) p[h * SLOTS + s] = __fmaf_rn(x, v[s], p[h * SLOTS + s]);
            }
        }
        exchange<16>(p);
        exchange<8>(p);
        exchange<4>(p);
        exchange<2>(p);
        exchange<1>(p);
        int h = head + l / SLOTS, j = first + l % SLOTS;
        bool taken = take[0];
#pragma unroll
        for (int s = 1; s < SLOTS; s++) taken = l % SLOTS == s ? take[s] : taken;
        if (h < t->heads && j < row->width)
            logits(t, scratch, r, h)[j] = taken ? __fmul_rn(p[0], t->scale) : -F32_INF;
    }
}

// One warp a row and head. The weights take the logits' place; the sum of all takes the first place beyond them.
extern "C" __global__ void __launch_bounds__(128) attention_softmax(const Table* t, char* scratch, u32 blocks_x) {
    int r = BLOCK_Y, h = BLOCK_X * 4 + warp(), l = lane();
    const Row* row = &t->row[r];
    if (!row->active || h >= t->heads || found(scratch)[r].attended <= 0) return;
    const int* indices = (const int*)row->indices;
    float* w = logits(t, scratch, r, h);
    float most = -F32_INF;
    bool bad = false;
    for (int j = l; j < row->width; j += WARP) {
        if (indices[j] == NO_INDEX) continue;
        bad |= !finite(w[j]);
        most = fmaxf(most, w[j]);
    }
    for (int s = WARP / 2; s > 0; s /= 2) most = fmaxf(most, __shfl_xor_sync(FULL, most, s));
    float sink = t->sinks ? ((const float*)t->sinks)[h] : 0.0f;
    if (t->sinks) {
        bad |= !finite(sink);
        most = fmaxf(most, sink);
    }
    bad = __any_sync(FULL, bad);
    if (bad && l == 0) atomicOr(&found(scratch)[r].suspect, 1u);
    float sum = l == 0 && t->sinks ? exp_ref(__fsub_rn(sink, most)) : 0.0f;
    for (int j = l; j < row->width; j += WARP) {
        float weight = exp_ref(__fsub_rn(w[j], most));
        w[j] = weight;
        sum = __fadd_rn(sum, weight);
    }
    sum = tree(sum);
    if (l == 0) w[t->width - 1] = bad ? F32_NAN : sum;
}

// Whether a cache row that the row attends to has a value that is not finite. All threads of the block call it.
static __device__ __forceinline__ bool cache_is_bad(const Table* t, const Row* row) {
    const int* indices = (const int*)row->indices;
    bool bad = false;
    for (int j = warp(); j < row->width; j += blockDim.x / WARP) {
        if (indices[j] == NO_INDEX) continue;
        const bf16* kv = (const bf16*)row->kv + (u64)indices[j] * t->dim;
        for (int f = lane(); f < t->dim; f += WARP) bad |= !finite_bits(kv[f]);
    }
    return __syncthreads_or(bad);
}

// What is wrong with a head's query and sink. All threads of the block call it.
static __device__ __forceinline__ u32 input_faults(const Table* t, const Row* row, int h) {
    const bf16* q = (const bf16*)t->q + (row->query * t->heads + h) * (u64)t->dim;
    bool bad = false;
    for (int f = threadIdx.x; f < t->dim; f += blockDim.x) bad |= !finite_bits(q[f]);
    u32 faults = __syncthreads_or(bad) ? NONFINITE_QUERY : 0;
    if (t->sinks && !finite(((const float*)t->sinks)[h])) faults |= NONFINITE_SINK;
    return faults;
}

// One block a row and 4 heads; a thread has the features f, f + blockDim, ... of all of them.
#define SUM_HEADS 4
extern "C" __global__ void __launch_bounds__(256) attention_values(const Table* t, char* scratch, u32 blocks_x) {
    int r = BLOCK_Y, head = BLOCK_X * SUM_HEADS;
    const Row* row = &t->row[r];
    if (!row->active) return;
    Found f0 = found(scratch)[r];
    int heads = min(SUM_HEADS, t->heads - head);
    bf16* out = (bf16*)t->out + (row->out * t->heads + head) * (u64)t->dim;
    bool zero = f0.attended <= 0;
    u32 faults = 0;
    if (!zero && f0.suspect && cache_is_bad(t, row)) {
        zero = true;
        faults = NONFINITE_KV;
        for (int h = 0; h < heads; h++) faults |= input_faults(t, row, head + h);
    }
    if (zero) {
        for (int f = threadIdx.x; f < heads * t->dim; f += blockDim.x) out[f] = 0;
    } else {
        const int* indices = (const int*)row->indices;
        const bf16* kv = (const bf16*)row->kv;
        const float* w[SUM_HEADS];
#pragma unroll
        for (int h = 0; h < SUM_HEADS; h++) w[h] = logits(t, scratch, r, head + min(h, heads - 1));
        u32 bad = 0;  // a bit a head
        for (int f = threadIdx.x; f < t->dim; f += blockDim.x) {
            float sum[SUM_HEADS] = {};
            for (int j = 0; j < row->width; j++) {
                int index = indices[j];
                if (index == NO_INDEX) continue;
                float v = widen(kv[(u64)index * t->dim + f]);
#pragma unroll
                for (int h = 0; h < SUM_HEADS; h++) sum[h] = __fmaf_rn(w[h][j], v, sum[h]);
            }
            for (int h = 0; h < heads; h++) {
                float value = __fdiv_rn(sum[h], w[h][t->width - 1]);
                bf16 rounded = narrow(value);
                if (!finite(value) || !finite_bits(rounded)) bad |= 1u << h;
                out[h * t->dim + f] = rounded;
            }
        }
        for (int h = 0; h < heads; h++) {
            if (!__syncthreads_or(bad >> h & 1)) continue;
            u32 input = input_faults(t, row, head + h);
            faults |= input ? input : OVERFLOW;
            for (int f = threadIdx.x; f < t->dim; f += blockDim.x) out[h * t->dim + f] = 0;
        }
    }
    if (faults && threadIdx.x == 0 && t->status) atomicOr((u32*)t->status + r, faults);
}
