// Fast sparse attention of 512 features in one launch. A cluster of C blocks owns a group of a row's heads.
//
// What a block owns
//   * every C-th tile of the row's slots: it gathers their cache rows whole, scores them (queries in registers) and sends the weights to the C blocks;
//   * 512 / C of the features: it gathers these of all tiles, and sums tile after tile.
// Scores are split by slots and sums by features, so no partial output crosses blocks. Logits, a gathered copy of the cache and partial sums are
// never materialised.
//
// The bits follow from the row's width alone, not from C or the groups: a block alone (sparse_attention_alone_hopper.cu) gives the same. A head's
// weights in a tile are exp(logit - the tile's largest), in bf16; what was summed before is brought to the new tile's unit first. The unit follows the
// tiles' largest logits, but down by 2^40 at most: a tile further below counts as if it were there, which is nothing. The sink joins at the end.
//
// Three rings: pieces of own tiles (loaded, scored), slices of all tiles (loaded, summed) and weights. A tile is `full` in a block when its slice and its
// weights are there; sums wait for one another from tile to tile, so the warps that sum do nothing else: one warp keeps all heads' chains of units ahead of
// them, leaves their factors and calls the tile `ready`. When it is `summed`, the warps that load slices reuse its slice and tell the block that sends
// weights to this place next; that one sends when all C have told.
//
// Data checks ride on the logits. Where one of them, a sink or a result is not finite, the cluster's first block looks again when all have
// written. A row's last group to end says how it went.

template <int C> static __device__ __forceinline__ void load(const Block<C>& b) {
    if (threadIdx.x < BLOCK - 128) {
        load_tiles(b);
        dependents_may_start();  // what the next launch asks for is in nobody's way now
        cluster_wait();
    } else {
        if (threadIdx.x < BLOCK - WARP) load_slices(b);
        else keep_chains(b);
        __syncwarp();
        arrive_some<1, 128 + SUMMERS>();
    }
    copies_wait();
    b.leave();
}

template <int C> static __device__ __forceinline__ void attend(const Table* t, u32 blocks_x) {
    using F = Form<C>;
    const Block<C> b(t, blocks_x);
    const bool active = b.row->active;
    if (active) start(b);
    // A row of few tiles ends soon: the next launch starts at once, to be ready then; else when tiles have been asked for.
    if (b.tiles <= C) dependents_may_start();
    if (active && b.rank == 0 && threadIdx.x == 0) prefetch(b.queries, b.heads * (DIM * 2));
    __syncthreads();
    if (active) cluster_arrive();
    wait_for_predecessors();
    if (!active) return;
    if (threadIdx.x < 256) {  // who would only wait brings the queries
#pragma unroll 4
        for (int i = warp(); i < 2 * b.heads; i += 8) {
            const int h = i / 2, c = i % 2 * WARP + lane();
            copy16(b.shared + h * F::QUERY_PITCH + c * 16, b.queries + h * (DIM * 2) + c * 16, 16);
        }
        barrier_arrive_copied(b.queries_full());
    }
    const int who = __shfl_sync(FULL, threadIdx.x / 128, 0);
    if (who > 1) {
        set_registers<REGISTERS, F::LOAD_REGISTERS>();
        load(b);
    } else if (who == 0) {
        set_registers<REGISTERS, F::SCORE_REGISTERS>();
        score(b);
    } else {
        set_registers<REGISTERS, F::SUM_REGISTERS>();
        sum(b);
    }
}

#define FORM(C)                                                                                                            \
    extern "C" __global__ void __launch_bounds__(BLOCK, 1) attention_##C(const Table* t, char* scratch, u32 blocks_x) {     \
        attend<C>(t, blocks_x);                                                                                            \
    }
FORM(2)
FORM(3)
FORM(4)
FORM(8)
FORM(16)
