// Two kernels that are right, and others with a defect each, which the harness must catch.

#include <metal_stdlib>
using namespace metal;

struct Head {
    device uint* numbers;  // [64]
    device uint* out;      // [64]
};

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

// Turns 64 numbers round, through threadgroup memory.
[[kernel]] void reverse(ARGUMENTS) {
    threadgroup uint numbers[64];
    numbers[thread_id] = head.numbers[thread_id];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    head.out[thread_id] = numbers[63 - thread_id];
}

[[kernel]] void reverse_without_barrier(ARGUMENTS) {
    threadgroup uint numbers[64];
    numbers[thread_id] = head.numbers[thread_id];
    head.out[thread_id] = numbers[63 - thread_id];
}

[[kernel]] void reverse_with_some_at_the_barrier(ARGUMENTS) {
    threadgroup uint numbers[64];
    numbers[thread_id] = head.numbers[thread_id];
    if (thread_id < 40) threadgroup_barrier(mem_flags::mem_threadgroup);
    head.out[thread_id] = numbers[63 - thread_id];
}

[[kernel]] void reverse_at_two_barriers(ARGUMENTS) {
    threadgroup uint numbers[64];
    numbers[thread_id] = head.numbers[thread_id];
    if (warp == 0) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
    } else {
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    head.out[thread_id] = numbers[63 - thread_id];
}

// The sum of each simdgroup's numbers in all its lanes.
inline uint sum(uint x) {
    for (ushort s = 16; s > 0; s /= 2) x += simd_shuffle_xor(x, s);
    return x;
}

[[kernel]] void sums(ARGUMENTS) { head.out[thread_id] = sum(head.numbers[thread_id]); }

[[kernel]] void sums_of_some_lanes(ARGUMENTS) {
    head.out[thread_id] = 0;
    if (lane < 20) head.out[thread_id] = sum(head.numbers[thread_id]);
}

[[kernel]] void one_beyond_memory(ARGUMENTS) { head.out[thread_id] = head.numbers[thread_id + 1]; }

[[kernel]] void one_beyond_dynamic_memory(ARGUMENTS) {
    threadgroup uint* numbers = (threadgroup uint*)shared;
    numbers[thread_id + 1] = thread_id;
    head.out[thread_id] = numbers[thread_id + 1];
}

[[kernel]] void one_beyond_an_array(ARGUMENTS) {
    threadgroup uint numbers[64];
    numbers[thread_id + 1] = thread_id;
    head.out[thread_id] = numbers[thread_id + 1];
}
