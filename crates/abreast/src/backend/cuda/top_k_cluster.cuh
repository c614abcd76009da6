// How the blocks of a cluster talk in top_k_hopper.cu: stores into each other's shared memory that count themselves in on an
// mbarrier of the block they go to. The receiver needs no fence, and no cluster barrier, which would cost more.

static __device__ __forceinline__ void send(u32 to, u32 x, u32 barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to), "r"(x), "r"(barrier) : "memory");
}
static __device__ __forceinline__ void send(u32 to, u64 x, u32 barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(to), "l"(x), "r"(barrier) : "memory");
}
static __device__ __forceinline__ void send(u32 to, uint4 x, u32 barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to), "r"(x.x),
                 "r"(x.y), "r"(x.z), "r"(x.w), "r"(barrier)
                 : "memory");
}

// Which cluster of the grid this is.
static __device__ __forceinline__ u32 cluster_index() {
    u32 index;
    asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(index));
    return index;
}

// A barrier for one arrival and the bytes that it expects. Bytes may come in before they are expected.
struct Barrier {
    u64 state;

    __device__ __forceinline__ void start() { barrier_init(shared_address(&state), 1); }
    __device__ __forceinline__ void expect(u32 bytes) { barrier_expect(shared_address(&state), bytes); }
    __device__ __forceinline__ void wait(u32 parity) { barrier_wait(shared_address(&state), parity); }
};
