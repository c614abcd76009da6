// What every kernel starts with: bf16 by hand, the reference order, the exponential. The constants in capitals come from
// dims.rs. bf16 are ushort: widening and narrowing are integer operations, which no mode of the chip touches.

#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

// A kernel has the address of its table, the scratch memory, and dynamic threadgroup memory. Its file says what a `Head` is; the
// rows of the table, a `Row` each, lie behind it.
#define ARGUMENTS                                          \
    device const Head& head [[buffer(0)]],                 \
    device uchar* scratch [[buffer(1)]],                   \
    threadgroup uchar* shared [[threadgroup(0)]],          \
    uint thread_id [[thread_index_in_threadgroup]],        \
    uint lane [[thread_index_in_simdgroup]],               \
    uint warp [[simdgroup_index_in_threadgroup]],          \
    uint2 block [[threadgroup_position_in_grid]],          \
    uint2 blocks [[threadgroups_per_grid]],                \
    uint2 block_size [[threads_per_threadgroup]]

constant constexpr uint LANES = 32;

inline float widen(ushort x) { return as_type<float>(uint(x) << 16); }

// To nearest even; x is finite or the caller discards the result.
inline ushort narrow(float x) {
    uint bits = as_type<uint>(x);
    return ushort((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline bool is_finite(float x) { return (as_type<uint>(x) & 0x7f800000u) != 0x7f800000u; }
inline bool is_finite_bits(ushort x) { return (x & 0x7f80u) != 0x7f80u; }

// In units of 2^-149; |x| < 2^-100.
inline long small_units(float x) {
    uint bits = as_type<uint>(x), exponent = (bits >> 23) & 0xffu;
    long mantissa = bits & 0x7fffffu;
    long units = exponent == 0 ? mantissa : (mantissa | 0x800000) << (exponent - 1);
    return bits >> 31 ? -units : units;
}

// a + b in IEEE arithmetic: Apple's chips take subnormal numbers for zeros. One is lost beside 2^-100 anyway; the sum of smaller
// numbers is found in integers, and rounds where it is a normal number.
inline float add_ieee(float a, float b) {
    uint larger = max(as_type<uint>(a) & 0x7fffffffu, as_type<uint>(b) & 0x7fffffffu);
    if (larger >= 0x0d800000u || larger == 0) return a + b;
    long sum = small_units(a) + small_units(b);
    uint sign = sum < 0 ? 0x80000000u : 0u;
    ulong units = sum < 0 ? ulong(-sum) : ulong(sum);
    if (units < 0x1000000ul) return as_type<float>(sign | uint(units));
    return as_type<float>(sign | (as_type<uint>(float(units)) - (149u << 23)));
}

// exp(x) for x <= 0; see dims.rs.
inline float exp_ref(float x) {
    float t = fma(x, EXP_LOG2_E, EXP_ROUND);
    float n = t - EXP_ROUND;
    float r = fma(n, -EXP_LN2_HIGH, x);
    r = fma(n, -EXP_LN2_LOW, r);
    float p = EXP_C0;
    p = fma(p, r, EXP_C1);
    p = fma(p, r, EXP_C2);
    p = fma(p, r, EXP_C3);
    p = fma(p, r, EXP_C4);
    p = fma(p, r, EXP_C5);
    p = fma(p, r, EXP_C6);
    float scaled = as_type<float>(as_type<uint>(p) + (as_type<uint>(t) << 23));
    return x >= EXP_LOWEST ? scaled : 0.0f;
}

// Partial sum l is in lane l: p[l] += p[l + s] for s = 16, 8, 4, 2, 1. The sum is in lane 0.
inline float tree(float p) {
    for (ushort s = LANES / 2; s > 0; s /= 2) p = p + simd_shuffle_down(p, s);
    return p;
}

// Whether `x` holds for a thread of the threadgroup. All threads call it.
inline bool group_any(bool x, threadgroup atomic_uint* flag, uint thread_id) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_id == 0) atomic_store_explicit(flag, 0u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (x) atomic_store_explicit(flag, 1u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return atomic_load_explicit(flag, memory_order_relaxed) != 0;
}

// Sets bits of a row's status word, where there are any words.
inline void add_status(device uint* status, uint row, uint bits) {
    if (status) atomic_fetch_or_explicit((device atomic_uint*)status + row, bits, memory_order_relaxed);
}
