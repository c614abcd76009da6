// Products of queries and cache rows, for attention and index scores. In the reference order by lanes, and in simdgroup matrices: these
// multiply and add in f32, and every bf16 is an f32, so that operands are exact.

// In the reference order: a simdgroup takes 4 columns (cache rows) against 8 heads at a time. Lane l holds partial sum l of all
// 32 pairs; exchanging halves of the pairs between halves of the lanes, five times, is the tree.
constant constexpr uint PAIR_HEADS = 8;
constant constexpr uint PAIR_COLUMNS = 4;
constant constexpr uint PAIRS = PAIR_HEADS * PAIR_COLUMNS;

struct Pairs {
    float sum[PAIRS];
};

struct Columns {
    device const ushort* row[PAIR_COLUMNS];  // null: none
};

// After the step with distance D, lane l holds the pairs whose number agrees with it in the bits from D up.
template <uint D>
inline void exchange_halves(thread Pairs& p, uint lane) {
    bool upper = (lane & D) != 0;
#pragma unroll
    for (uint i = 0; i < D; i++) {
        float give = upper ? p.sum[i] : p.sum[i + D];
        float keep = upper ? p.sum[i + D] : p.sum[i];
        p.sum[i] = keep + simd_shuffle_xor(give, ushort(D));
    }
}

// The dot product of head l / 4 and column l % 4 in lane l; `heads` of `q` are there, more are zero.
inline float pair_dots(device const ushort* q, thread const Columns& columns, uint heads, uint2 lane_and_dim) {
    uint lane = lane_and_dim.x, dim = lane_and_dim.y;
    Pairs p;
#pragma unroll
    for (uint i = 0; i < PAIRS; i++) p.sum[i] = 0.0f;
    for (uint f = lane; f < dim; f += LANES) {
        float v[PAIR_COLUMNS];
#pragma unroll
        for (uint c = 0; c < PAIR_COLUMNS; c++) v[c] = columns.row[c] ? widen(columns.row[c][f]) : 0.0f;
#pragma unroll
        for (uint h = 0; h < PAIR_HEADS; h++) {
            float x = h < heads ? widen(q[h * dim + f]) : 0.0f;
#pragma unroll
            for (uint c = 0; c < PAIR_COLUMNS; c++)
                p.sum[h * PAIR_COLUMNS + c] = fma(x, v[c], p.sum[h * PAIR_COLUMNS + c]);
        }
    }
    exchange_halves<16>(p, lane);
    exchange_halves<8>(p, lane);
    exchange_halves<4>(p, lane);
    exchange_halves<2>(p, lane);
    exchange_halves<1>(p, lane);
    return p.sum[0];
}

// In matrices: a threadgroup of 8 simdgroups owns [64 heads][32 columns]; each simdgroup 16 x 16 of it, as 2 x 2 matrices of
// 8 x 8. Operands come in steps of 32 through threadgroup memory. The order of every sum is that of the steps.
constant constexpr uint TILE_HEADS = 64;
constant constexpr uint TILE = 32;    // columns, and the length of a step
constant constexpr uint PITCH = 36;   // of a row of operands: 8 rows of a matrix lie in different banks
constant constexpr uint TILE_THREADS = 256;
constant constexpr uint A_FLOATS = TILE_HEADS * PITCH;
constant constexpr uint TILE_FLOATS = A_FLOATS + TILE * PITCH;

struct Accumulators {
    simdgroup_float8x8 of[2][2];
};

inline void clear_sums(thread Accumulators& sums) {
#pragma unroll
    for (uint i = 0; i < 2; i++) {
#pragma unroll
        for (uint j = 0; j < 2; j++) sums.of[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
}

// Adds a step: `tile` holds A [64][step] and B, [column][step] where it is transposed, else [step][column].
inline void multiply_step(thread Accumulators& sums, threadgroup const float* tile, uint warp, bool transposed) {
    threadgroup const float* a = tile + (warp / 2) * 16 * PITCH;
    threadgroup const float* b = tile + A_FLOATS;
    uint column = (warp % 2) * 16;
    for (uint k = 0; k < TILE; k += 8) {
        simdgroup_float8x8 left[2];
        simdgroup_float8x8 right[2];
#pragma unroll
        for (uint i = 0; i < 2; i++) {
            simdgroup_load(left[i], a + i * 8 * PITCH + k, PITCH);
            uint first = column + 8 * i;
            if (transposed) {
                simdgroup_load(right[i], b + first * PITCH + k, PITCH, ulong2(0, 0), true);
            } else {
                simdgroup_load(right[i], b + k * PITCH + first, PITCH);
            }
        }
#pragma unroll
        for (uint i = 0; i < 2; i++) {
#pragma unroll
            for (uint j = 0; j < 2; j++)
                simdgroup_multiply_accumulate(sums.of[i][j], left[i], right[j], sums.of[i][j]);
        }
    }
}

// Puts the sums to `tile`, [64][PITCH], when all have read what is there; all may read them on return.
inline void spread(thread const Accumulators& sums, threadgroup float* tile, uint warp) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup float* place = tile + (warp / 2) * 16 * PITCH + (warp % 2) * 16;
#pragma unroll
    for (uint i = 0; i < 2; i++) {
#pragma unroll
        for (uint j = 0; j < 2; j++) simdgroup_store(sums.of[i][j], place + i * 8 * PITCH + j * 8, PITCH);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

// tile[h][c] = dot of head h of `q` and the column that starts at element `offset[c]` of `rows`, or -1: none. All threads call it, and
// `offset` is written before.
struct TileDots {
    device const ushort* q;     // [heads][dim]
    device const ushort* rows;
    uint heads, dim;
};

inline void tile_dots(
    thread const TileDots& of, threadgroup float* tile, threadgroup const long* offset, uint2 thread_and_warp) {
    uint thread_id = thread_and_warp.x, warp = thread_and_warp.y;
    Accumulators sums;
    clear_sums(sums);
    for (uint f = 0; f < of.dim; f += TILE) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = thread_id; i < TILE_HEADS * TILE; i += TILE_THREADS) {
            uint h = i / TILE, k = i % TILE;
            tile[h * PITCH + k] = h < of.heads ? widen(of.q[h * of.dim + f + k]) : 0.0f;
        }
        for (uint i = thread_id; i < TILE * TILE; i += TILE_THREADS) {
            uint c = i / TILE, k = i % TILE;
            tile[A_FLOATS + c * PITCH + k] = offset[c] >= 0 ? widen(of.rows[offset[c] + f + k]) : 0.0f;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if ((warp / 2) * 16 < of.heads) multiply_step(sums, tile, warp, true);
    }
    spread(sums, tile, warp);
}
