// What Hopper's kernels of sparse attention share: the numbers of a tile and its arithmetic, which fixes the bits.

#define DIM HEAD_DIM

#define GROUP 64  // heads of a block at most: the rows of a matrix
#define TILE 48   // slots of a tile at most
#define NARROW_TILE 32  // of rows of few slots
#define STEP 16   // slots of one product
#define LOG2_E EXP_LOG2_E
#define DROP 27.725887f  // 40 ln 2

// Slots of a tile, by the row's width alone.
static __device__ __forceinline__ int slots_of(int width) { return width <= 128 ? NARROW_TILE : TILE; }

// Logits of a tile from dot products, -inf where a slot is absent; their largest, and NaN instead of 0 where one that is there is not finite.
static __device__ __forceinline__ void screen(
    float (&x)[TILE / 2], const unsigned char* attended, float scale, float (&largest)[2], float (&check)[2]) {
    const u32* words = (const u32*)attended;
    const bool all = __all_sync(FULL, lane() * 4 >= TILE || words[lane() * 4 < TILE ? lane() : 0] == 0x01010101u);
    largest[0] = largest[1] = -F32_INF;
    check[0] = check[1] = 0.0f;
    if (all) {
#pragma unroll
        for (int i = 0; i < TILE / 2; i++) {
            x[i] = __fmul_rn(x[i], scale);
            check[i >> 1 & 1] = __fmaf_rn(x[i], 0.0f, check[i >> 1 & 1]);
            largest[i >> 1 & 1] = fmaxf(largest[i >> 1 & 1], x[i]);
        }
    } else {
#pragma unroll
        for (int j = 0; j < TILE / 8; j++) {
            const u32 both = *(const unsigned short*)(attended + j * 8 + (lane() & 3) * 2);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const bool there = both >> (i & 1) * 8 & 1;
                const float logit = __fmul_rn(x[4 * j + i], scale);
                check[i >> 1] = __fmaf_rn(there ? logit : 0.0f, 0.0f, check[i >> 1]);
                x[4 * j + i] = there ? logit : -F32_INF;
                largest[i >> 1] = fmaxf(largest[i >> 1], x[4 * j + i]);
            }
        }
    }
#pragma unroll
    for (int side = 0; side < 2; side++)
#pragma unroll
        for (int i = 1; i < 4; i *= 2) largest[side] = fmaxf(largest[side], __shfl_xor_sync(FULL, largest[side], i));
}

// A head's sums so far are relative to exp(unit).
struct Chain {
    float unit, most, sum;
};

// A tile's largest logit comes next: what the sums so far are multiplied by.
static __device__ __forceinline__ float advance(Chain& c, float largest) {
    const bool none = largest == -F32_INF;
    const float unit = fmaxf(largest, c.most - DROP), factor = none ? 1.0f : exp2_fast((c.unit - unit) * LOG2_E);
    c.unit = none ? c.unit : unit;
    c.most = fmaxf(c.most, c.unit);
    return factor;
}
// And the sum of its weights.
static __device__ __forceinline__ float advance(Chain& c, float largest, float sum) {
    const float factor = advance(c, largest);
    c.sum = __fmaf_rn(c.sum, factor, sum);
    return factor;
}

// A quad's 16 columns of two rows of bf16, as the matrix unit leaves them; one store of 16 bytes a lane, lanes 0 and 1 of the first row.
static __device__ __forceinline__ void store_quad(bf16* first, const u32* v, bool here) {
    int q = lane() & 3;
    u32 x0 = __shfl_xor_sync(FULL, q & 1 ? v[0] : v[1], 1), x1 = __shfl_xor_sync(FULL, q & 1 ? v[2] : v[3], 1);
    u32 a0 = q & 1 ? x0 : v[0], a1 = q & 1 ? v[1] : x0;
    u32 b0 = q & 1 ? x1 : v[2], b1 = q & 1 ? v[3] : x1;
    u32 y0 = __shfl_xor_sync(FULL, q & 2 ? a0 : b0, 2), y1 = __shfl_xor_sync(FULL, q & 2 ? a1 : b1, 2);
    uint4 mine = q & 2 ? make_uint4(y0, y1, b0, b1) : make_uint4(a0, a1, y0, y1);
    if (here) *(uint4*)(first + (q & 2 ? 8 * DIM : 0) + (q & 1) * 8) = mine;
}

