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
