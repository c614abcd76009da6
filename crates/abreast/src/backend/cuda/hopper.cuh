// Instructions of compute capability 9.0 by name, for the kernels of that chip alone. Addresses of shared memory are 32-bit.

// A group of 4 warps changes its registers a thread from FROM to TO.
template <int FROM, int TO> static __device__ __forceinline__ void set_registers() {
    if (TO > FROM) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(TO));
    if (TO < FROM) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(TO));
}

// ---- Words of shared memory, and copies of 16 bytes into it; bytes beyond `bytes` are zeros and not read.

static __device__ __forceinline__ u32 load_shared(u32 from) {
    u32 word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
    return word;
}
static __device__ __forceinline__ void store_shared(u32 to, u32 word) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}
// Without a branch.
static __device__ __forceinline__ void store_shared_if(bool where, u32 to, u32 word) {
    asm volatile("{\n .reg .pred p;\n setp.ne.u32 p, %2, 0;\n @p st.shared.b32 [%0], %1;\n}\n" ::"r"(to), "r"(word), "r"((u32)where) : "memory");
}
static __device__ __forceinline__ void copy16(u32 to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void copy16(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// The same for memory of which every line is asked for anyway: it brings no neighbours into the L2.
static __device__ __forceinline__ void copy16_alone(u32 to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
// Asks the L2 cache for a multiple of 16 bytes at a multiple of 16, and reads nothing: allowed before `wait_for_predecessors`.
static __device__ __forceinline__ void prefetch(const void* from, u32 bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// ---- Barriers in shared memory, beside what every chip has of them.

// At a barrier of any block of the cluster, by its address there.
static __device__ __forceinline__ void barrier_arrive_there(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and the barrier waits for so many bytes of bulk copies too.
static __device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Whether that would not wait; the same in all lanes.
static __device__ __forceinline__ bool barrier_reached(u32 barrier, u32 parity) {
    u32 done;
    asm volatile(
        "{\n .reg .pred p;\n mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return __all_sync(FULL, done);
}

// Barrier ID among COUNT threads of a block; not 0, which is __syncthreads.
template <int ID, int COUNT> static __device__ __forceinline__ void sync_some() {
    asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(COUNT) : "memory");
}
template <int ID, int COUNT> static __device__ __forceinline__ void arrive_some() {
    asm volatile("bar.arrive %0, %1;" ::"n"(ID), "n"(COUNT) : "memory");
}
template <int ID, int COUNT> static __device__ __forceinline__ bool any_of_some(bool mine) {
    u32 any;
    asm volatile(
        "{\n .reg .pred p, q;\n setp.ne.u32 p, %1, 0;\n bar.red.or.pred q, %2, %3, p;\n selp.u32 %0, 1, 0, q;\n}\n"
        : "=r"(any)
        : "r"((u32)mine), "n"(ID), "n"(COUNT)
        : "memory");
    return any;
}

// ---- Clusters.

// Orders execution alone; memory too after cluster_release.
static __device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
static __device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
static __device__ __forceinline__ void cluster_release() { asm volatile("fence.acq_rel.cluster;" ::: "memory"); }
static __device__ __forceinline__ void barriers_ready() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// The same place in another block of the cluster.
static __device__ __forceinline__ u32 in_block(u32 address, u32 rank) {
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
static __device__ __forceinline__ void or_there(u32 address, u32 bits) {
    asm volatile("red.relaxed.cluster.shared::cluster.or.b32 [%0], %1;" ::"r"(address), "r"(bits) : "memory");
}
// A bulk copy from this block to another, whose barrier counts it: a multiple of 16 bytes.
static __device__ __forceinline__ void bulk_send(u32 to, u32 from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "r"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

// ---- The matrix unit: 4 warps, D[64][N] (f32) (+)= A[64][16] B[16][N] (bf16).

// Ordinary writes to shared memory before it, reads by the matrix unit after it.
static __device__ __forceinline__ void matrix_sees_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
static __device__ __forceinline__ void matrix_start() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void matrix_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LATER> static __device__ __forceinline__ void matrix_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LATER) : "memory");
}

// Operands in shared memory: rows of 128 (64, 32) bytes, side by side, whose 16-byte pieces are swizzled: piece p of row r lies at p ^ r % 8
// (p ^ r / 2 % 4, p ^ r / 4 % 2). `leading`: bytes from one such piece of 64 columns to the next, where a turned operand has several. `eight`: from
// 8 rows to the next 8.
static __device__ __forceinline__ u64 operand128(u32 address, u32 leading, u32 eight = 1024) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)(leading >> 4) << 16 | (u64)(eight >> 4) << 32 | (u64)1 << 62;
}
static __device__ __forceinline__ u64 operand64(u32 address) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)(512 >> 4) << 32 | (u64)2 << 62;
}
static __device__ __forceinline__ u64 operand32(u32 address) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)(256 >> 4) << 32 | (u64)3 << 62;
}

// What is added to an operand that begins so many bytes further on.
static __device__ __forceinline__ u64 further(u32 bytes) { return bytes >> 4; }

// Of registers by number: ten from t * 10 on, and lists from 0 on.
#define TEN(t) "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9"
#define LIST16 TEN() ", %10, %11, %12, %13, %14, %15"
#define LIST24 LIST16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define LIST32 LIST24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define LIST64 LIST32 ", %32, %33, %34, %35, %36, %37, %38, %39, " TEN(4) ", " TEN(5) ", %60, %61, %62, %63"
#define LIST96 LIST64 ", %64, %65, %66, %67, %68, %69, " TEN(7) ", " TEN(8) ", %90, %91, %92, %93, %94, %95"
#define D8(d, i)                                                                                                    \
    "+f"((d)[i]), "+f"((d)[i + 1]), "+f"((d)[i + 2]), "+f"((d)[i + 3]), "+f"((d)[i + 4]), "+f"((d)[i + 5]),         \
        "+f"((d)[i + 6]), "+f"((d)[i + 7])
#define D16(d) D8(d, 0), D8(d, 8)
#define D24(d) D16(d), D8(d, 16)
#define D32(d) D24(d), D8(d, 24)
#define D64(d) D32(d), D8(d, 32), D8(d, 40), D8(d, 48), D8(d, 56)
#define D96(d) D64(d), D8(d, 64), D8(d, 72), D8(d, 80), D8(d, 88)
#define MULTIPLY(N) "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 "

// A's 16 rows of this warp and 16 columns of 2 bytes, from rows in shared memory: lane l gives the address of row l % 16, columns l / 16 * 8 and on.
static __device__ __forceinline__ void load_operand(u32* a, u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(from)
                 : "memory");
}
// D += A B, where B's 16 values of a column lie side by side, as A's of a row; A from shared memory, or from registers.
static __device__ __forceinline__ void multiply(float (&d)[16], u64 a, u64 b) {
    asm volatile(MULTIPLY(32) "{" LIST16 "}, %16, %17, 1, 1, 1, 0, 0;" : D16(d) : "l"(a), "l"(b));
}
static __device__ __forceinline__ void multiply(float (&d)[24], u64 a, u64 b) {
    asm volatile(MULTIPLY(48) "{" LIST24 "}, %24, %25, 1, 1, 1, 0, 0;" : D24(d) : "l"(a), "l"(b));
}
static __device__ __forceinline__ void multiply(float (&d)[32], u64 a, u64 b) {
    asm volatile(MULTIPLY(64) "{" LIST32 "}, %32, %33, 1, 1, 1, 0, 0;" : D32(d) : "l"(a), "l"(b));
}
static __device__ __forceinline__ void multiply(float (&d)[24], const u32* a, u64 b) {
    asm volatile(MULTIPLY(48) "{" LIST24 "}, {%24, %25, %26, %27}, %28, 1, 1, 1, 0;"
                 : D24(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
// D += A B, where B's N values of a row lie side by side.
static __device__ __forceinline__ void multiply_turned(float (&d)[16], u64 a, u64 b) {
    asm volatile(MULTIPLY(32) "{" LIST16 "}, %16, %17, 1, 1, 1, 0, 1;" : D16(d) : "l"(a), "l"(b));
}
static __device__ __forceinline__ void multiply_turned(float (&d)[32], u64 a, u64 b) {
    asm volatile(MULTIPLY(64) "{" LIST32 "}, %32, %33, 1, 1, 1, 0, 1;" : D32(d) : "l"(a), "l"(b));
}
static __device__ __forceinline__ void multiply_turned(float (&d)[64], u64 a, u64 b) {
    asm volatile(MULTIPLY(128) "{" LIST64 "}, %64, %65, 1, 1, 1, 0, 1;" : D64(d) : "l"(a), "l"(b));
}
static __device__ __forceinline__ void multiply_turned(float (&d)[96], u64 a, u64 b) {
    asm volatile(MULTIPLY(192) "{" LIST96 "}, %96, %97, 1, 1, 1, 0, 1;" : D96(d) : "l"(a), "l"(b));
}

// ---- Arithmetic.

// Computed here, and not again where it is used.
static __device__ __forceinline__ void keep(u32& x) { asm volatile("" : "+r"(x)); }
static __device__ __forceinline__ void keep(const char*& x) { asm volatile("" : "+l"(x)); }

// Two values to bf16, to nearest even; `low` in the lower half.
static __device__ __forceinline__ u32 narrow2(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
// 2^x to 2 units of the last place; results below the normal range are 0.
static __device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// Each half becomes NaN where such a half of `both` is not finite.
static __device__ __forceinline__ void check2(u32& check, u32 both) {
    asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(check) : "r"(both), "r"(0));
}
