// Reference index scores: a thread has a key. Its 128 (or dim) features lie in shared memory feature-major, so that lanes
// read side by side; the 32 partial sums are added up in registers in the order of the tree.

struct Row {
    u64 keys;    // bf16 [kv_len][dim]
    u64 query;   // row of q and weights
    u64 out;     // first score in out
    i64 count;   // keys that the query may see
};

struct Table {
    u64 q;       // bf16 [queries][heads][dim]
    u64 weights; // f32 [queries][heads]
    u64 out;     // f32; 0: the scratch memory
    u64 status;  // u32 [rows], or 0
    int heads, dim, rows, pad;
    Row row[1];
};

extern "C" __global__ void index_scores_start(const Table* t, char*, u32 blocks_x) {
    int r = BLOCK_X * blockDim.x + threadIdx.x;
    if (r < t->rows && t->status && t->row[r].count >= 0) ((u32*)t->status)[r] = 0;
}

extern "C" __global__ void __launch_bounds__(128) index_scores(const Table* t, char* scratch, u32 blocks_x) {
    extern __shared__ float shared[];
    int r = BLOCK_Y, dim = t->dim, steps = dim / PARTIALS, stride = blockDim.x + 1;
    const Row* row = &t->row[r];
    i64 first = (i64)BLOCK_X * blockDim.x;
    if (first >= row->count) return;
    int keys = (int)min((i64)blockDim.x, row->count - first);
    float* key = shared;                   // [dim][stride]
    float* query = shared + dim * stride;  // [dim], place by place of the tree
    const bf16* rows = (const bf16*)row->keys + first * dim;
    for (int i = threadIdx.x; i < blockDim.x * dim; i += blockDim.x) {
        int k = i / dim, f = i % dim;
        key[f * stride + k] = k < keys ? widen(rows[(i64)k * dim + f]) : 0.0f;
    }
    const float* weights = (const float*)t->weights + row->query * t->heads;
    bool bad = false;
    float score = 0.0f;
    for (int h = 0; h < t->heads; h++) {
        __syncthreads();
        const bf16* q = (const bf16*)t->q + (row->query * t->heads + h) * (u64)dim;
        for (int f = threadIdx.x; f < dim; f += blockDim.x) {
            // Bit-reversed: then the tree is pairwise summation in order.
            int place = __brev((u32)(f % PARTIALS)) >> 27;
            query[place * steps + f / PARTIALS] = widen(q[f]);
        }
        __syncthreads();
        float level[5];
#pragma unroll
        for (int place = 0; place < PARTIALS; place++) {
            int l = __brev((u32)place) >> 27;
            float p = 0.0f;
            for (int i = 0; i < steps; i++)
                p = __fmaf_rn(query[place * steps + i], key[(PARTIALS * i + l) * stride + threadIdx.x], p);
#pragma unroll
            for (int n = 0; n < 5; n++) {
                if (place >> n & 1) {
                    p = __fadd_rn(level[n], p);
                } else {
                    level[n] = p;
                    break;
                }
            }
            if (place == PARTIALS - 1) level[0] = p;
        }
        float dot = level[0], w = weights[h];
        bad |= !finite(dot) || !finite(w);
        score = __fmaf_rn(dot > 0.0f ? dot : 0.0f, w, score);
    }
    bad |= !finite(score);
    if (threadIdx.x < keys) {
        float* out = t->out ? (float*)t->out : (float*)scratch;
        out[row->out + first + threadIdx.x] = bad ? -F32_INF : score;
        if (bad && t->status) atomicOr((u32*)t->status + r, NONFINITE_SCORE);
    }
}
