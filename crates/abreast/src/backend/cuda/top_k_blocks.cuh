// How the blocks of top_k_hopper.cu that share a row agree. One that is alone talks to nobody.

// The scores that are taken: those above a score, and of those equal to it the first ones, in whole fours.
struct Bound {
    float score;
    u32 last;  // an index in the last such four

    // What the scores of the four at i must reach.
    __device__ __forceinline__ float of_four(u32 i) const { return i <= last ? score : value_of(ordered(score) + 1); }
};

struct Blocks {
    Shared& s;
    const u32 bits, rank;  // 1 << bits blocks take the row
    u32 hops = 0;
    bool bad = false;  // a score is not finite

    __device__ __forceinline__ u32 parts() const { return 1u << bits; }
    __device__ __forceinline__ u32 inbox_size() const { return CAP >> bits; }

    // A hop: every block sends to every block, itself included, and waits for all. Two barriers take turns: a block starts a
    // hop when all have sent the one before, so it is at most one ahead of the slowest.
    __device__ __forceinline__ u32 hop_barrier() const { return shared_address(&s.hop[hops % 2]); }
    __device__ __forceinline__ void expect(u32 bytes) {
        if (threadIdx.x == 0) s.hop[hops % 2].expect(bytes);
    }
    __device__ __forceinline__ void wait() {
        s.hop[hops % 2].wait(hops / 2 % 2);
        hops++;
    }

    // The best and the worst over all threads of the block, or `joint`ly of the cluster.
    template <int THREADS> __device__ __forceinline__ uint2 range(u32 most, u32 least, bool joint) {
        most = __reduce_max_sync(FULL, most);
        least = __reduce_min_sync(FULL, least);
        if (lane() == 0) s.warps[warp()] = make_uint2(most, least);
        bad = __syncthreads_or(bad);
        uint2 other = lane() < THREADS / WARP ? s.warps[lane()] : make_uint2(0, ~0u);
        most = __reduce_max_sync(FULL, other.x);
        least = __reduce_min_sync(FULL, other.y);
        if (joint) {
            expect(parts() * sizeof(u64));
            if (threadIdx.x < parts()) send(in_block(shared_address(&s.range[rank]), lane()), (u64)most << 32 | least, in_block(hop_barrier(), lane()));
            wait();
            u64 there = lane() < parts() ? s.range[lane()] : (u64)~0u;
            most = __reduce_max_sync(FULL, (u32)(there >> 32));
            least = __reduce_min_sync(FULL, (u32)there);
        }
        return make_uint2(most, least);
    }

    // The bin of the histogram, or jointly of all blocks' together, that holds the `need`-th entry, BINS for none; how many
    // are in bins before it and in it, no fewer than COUNT_MAX where they are cut.
    __device__ __forceinline__ Bin bin_of(u32 need, bool joint) {
        __syncthreads();
        auto (*joined)[BINS / 2] = s.joined[hops % 2];
        if (joint) {
            expect(parts() * BINS * 2);
            const u32 pieces = BINS / 8, block = threadIdx.x / pieces, piece = threadIdx.x % pieces;
            if (block < parts()) {
                auto two = [&](u32 bin) { return min(COUNT_MAX, s.histogram[8 * piece + bin]) | min(COUNT_MAX, s.histogram[8 * piece + bin + 1]) << 16; };
                send(in_block(shared_address(&joined[rank][4 * piece]), block), make_uint4(two(0), two(2), two(4), two(6)), in_block(hop_barrier(), block));
            }
            wait();
        }
        // One warp for all: others that did the same would only take turns with it.
        if (warp() == 0) {
            const uint4 own = ((const uint4*)s.histogram)[lane()];
            u32 count[BINS / WARP] = {own.x, own.y, own.z, own.w};
            if (joint) {
                uint2 sum = make_uint2(0, 0);
                for (u32 b = 0; b < parts(); b++) {
                    uint2 x = ((const uint2*)joined[b])[lane()];
                    sum.x += x.x;
                    sum.y += x.y;
                }
                count[0] = sum.x & 0xffff, count[1] = sum.x >> 16, count[2] = sum.y & 0xffff, count[3] = sum.y >> 16;
            }
            const u32 sum = count[0] + count[1] + count[2] + count[3];
            const u32 upto = sum_to_lane(sum);
            const u32 there = __ballot_sync(FULL, upto >= need);
            u32 before = upto - sum, bin = BINS / WARP * lane(), members = count[0];
#pragma unroll
            for (u32 i = 1; i < BINS / WARP; i++) {
                if (before + members < need) before += members, bin = BINS / WARP * lane() + i, members = count[i];
            }
            if (there == 0 && lane() == 0) s.bin = {BINS, 0, 0};
            if (lane() == __ffs(there) - 1) s.bin = {bin, before, members};
        }
        __syncthreads();
        return s.bin;
    }
    __device__ __forceinline__ void empty_histogram() {
        if (threadIdx.x < BINS) s.histogram[threadIdx.x] = 0;
    }

    // Of the blocks' bounds the one that takes most: those of a block are reached by k / parts groups of it. And the best score.
    __device__ __forceinline__ void agree(Bound& bound, float& top) {
        expect(parts() * sizeof(uint4));
        const Candidate own = candidate(bound.score, bound.last);
        if (threadIdx.x < parts()) {
            send(in_block(shared_address(&s.bound[rank]), lane()), make_uint4((u32)(own >> 32), (u32)own, ordered(top), 0), in_block(hop_barrier(), lane()));
        }
        wait();
        const uint4 there = lane() < parts() ? s.bound[lane()] : make_uint4(~0u, ~0u, 0, 0);
        const u32 score = __reduce_min_sync(FULL, there.x);
        bound.score = value_of(score);
        bound.last = index_of(__reduce_min_sync(FULL, there.x == score ? there.y : ~0u));
        top = value_of(__reduce_max_sync(FULL, there.z));
    }

    // Candidates of the cluster; how many are before this block's, how many block 0's inbox gets, and whether that is not all.
    struct Counts {
        u32 total, before, sent, most;
        bool all_sent;
    };
    __device__ __forceinline__ Counts count(bool to_inbox) {
        bad = __syncthreads_or(bad);
        u32 own = s.found;
        if (parts() == 1) return {own, 0, 0, own, false};
        expect(parts() * sizeof(u32));
        if (threadIdx.x < parts()) {
            u32 sent = to_inbox ? min(own, inbox_size()) : 0;
            u32 word = min(own, 0xffffu) | sent << 16 | (bad ? NONFINITE : 0);
            send(in_block(shared_address(&s.counts[rank]), lane()), word, in_block(hop_barrier(), lane()));
        }
        wait();
        u32 word = lane() < parts() ? s.counts[lane()] : 0, found = word & 0xffff, sent = word >> 16 & 0x7fff;
        bad = __any_sync(FULL, word & NONFINITE);
        return {__reduce_add_sync(FULL, found), __reduce_add_sync(FULL, lane() < rank ? found : 0), __reduce_add_sync(FULL, sent),
                __reduce_max_sync(FULL, found), !__any_sync(FULL, found != sent)};
    }
};
