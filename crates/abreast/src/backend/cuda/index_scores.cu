// Reference index scores: a thread has a key. Its 128 (or dim) features lie in shared memory feature-major, so that lanes
// read side by side; the 32 partial sums are added up in registers in the order of the tree. The work list is that of
// index_scores.cuh; a tile has as many keys as that memory holds, at most one for each thread.

extern "C" __global__ void __launch_bounds__(128, 1) index_scores(Table* t, char* scratch, u32) {
    extern __shared__ float shared[];
    int dim = t->dim, steps = dim / PARTIALS, places = t->tile, stride = places + 1;
    float* key = shared;                   // [dim][stride]
    float* query = shared + dim * stride;  // [dim], place by place of the tree
    int column = min((int)threadIdx.x, places);
    if (warp() == 0) clear_empty(t);
    each_part(t, t->row, [&](int r, const Row& row, i64 start, int all) {
        const float* weights = (const float*)t->weights + row.query * t->heads;
        bool any = false;
        if (threadIdx.x == 0) {
            clear(t, r);
            open_part(t, r);
        }
        for (int done = 0; done < all; done += places) {
            i64 first = start + done;
            int keys = min(places, all - done);
            const bf16* rows = (const bf16*)row.keys + first * dim;
            __syncthreads();
            for (int i = threadIdx.x; i < places * dim; i += blockDim.x) {
                int k = i / dim, f = i % dim;
                key[f * stride + k] = k < keys ? widen(rows[(i64)k * dim + f]) : 0.0f;
            }
            bool bad = false;
            float score = 0.0f;
            for (int h = 0; h < t->heads; h++) {
                __syncthreads();
                const bf16* q = (const bf16*)t->q + (row.query * t->heads + h) * (u64)dim;
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
                        p = __fmaf_rn(query[place * steps + i], key[(PARTIALS * i + l) * stride + column], p);
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
                out[row.out + first + threadIdx.x] = bad ? -F32_INF : score;
                any |= bad;
            }
        }
        __syncthreads();
        if (any) report_bad(t, r);
    });
}
