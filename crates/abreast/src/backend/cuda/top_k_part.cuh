// How top_k_hopper.cu finds a row's candidates.

// One block's part of a row of up to C * THREADS * FOURS * 4 scores, or, unless it keeps them, of any row.
template <int C, int THREADS, int FOURS, bool KEEPS> struct Part {
    Shared<C, KEEPS>& s;
    const Scores scores;
    const u32 k, parts, rank;
    u32 hops = 0;
    float best[FOURS];  // of each four; of a row too long, of the fours of every lap
    float4 kept[KEEPS ? FOURS : 1];
    float share = -F32_INF;  // the best of all
    bool bad = false;        // a score is not finite
    enum Group { SHARE, FOUR, SCORE } group = SHARE;

    static constexpr u32 INBOX = CAP / C;
    static constexpr int OWN = CAP / THREADS;
    static constexpr u32 LIMIT = KEEPS ? Shared<C, KEEPS>::ITEMS : CAP;  // most fours that are looked at one by one

    __device__ __forceinline__ u32 first(u32 j) const { return 4 * ((j * parts + rank) * THREADS + threadIdx.x); }
    __device__ __forceinline__ u32 lap() const { return 4 * parts * THREADS * FOURS; }

    // The row's last 1 to 3 scores, which make no four: those of one thread.
    __device__ __forceinline__ bool has_rest() const { return scores.n % 4 && rank == 0 && threadIdx.x == 0; }

    __device__ __forceinline__ void load() {
        const u32 end = scores.end();
        float rest[3] = {0.0f, 0.0f, 0.0f};
        if (has_rest()) {
#pragma unroll
            for (u32 e = 0; e < 3; e++) {
                if (end + e < scores.n) rest[e] = scores.at[end + e];
            }
        }
        if constexpr (KEEPS) {
#pragma unroll
            for (u32 j = 0; j < FOURS; j++) kept[j] = scores.fetch(first(j));
            if (parts > 1) cluster_wait();
            bool clean = true;
#pragma unroll
            for (u32 j = 0; j < FOURS; j++) clean &= all_finite(kept[j]);
            if (!clean) {
                bad = true;
#pragma unroll
                for (u32 j = 0; j < FOURS; j++) mend(kept[j]);
            }
#pragma unroll
            for (u32 j = 0; j < FOURS; j++) best[j] = first(j) < end ? best_of(kept[j]) : -F32_INF;
        } else {
            // Through places of the thread's own in shared memory: many loads are under way without registers for them.
            constexpr u32 DEPTH = CAP * sizeof(Candidate) * 2 / (THREADS * sizeof(float4));
            static_assert(FOURS % DEPTH == 0, "a four's place is known");
            const u32 step = 4 * parts * THREADS;
            auto place = [&](u32 j) {
                Candidate* half = j % DEPTH < DEPTH / 2 ? s.order.list : s.inbox;
                return (float4*)half + j % (DEPTH / 2) * THREADS + threadIdx.x;
            };
            auto start = [&](u32 i, u32 j) { scores.start_copy(i, place(j)); };
#pragma unroll
            for (u32 j = 0; j < FOURS; j++) best[j] = -F32_INF;
#pragma unroll
            for (u32 j = 0; j < DEPTH; j++) start(first(j), j);
            u32 i = first(0);
#pragma unroll 1
            for (u32 laps = (end + lap() - 1) / lap(); laps > 0; laps--) {
#pragma unroll
                for (u32 j = 0; j < FOURS; j++) {
                    copies_done<DEPTH - 1>();
                    float4 x = *place(j);
                    if (!all_finite(x)) bad |= mend(x);
                    best[j] = fmaxf(best[j], i < end ? best_of(x) : -F32_INF);
                    start(i + DEPTH * step, j);
                    i += step;
                    asm volatile("" : "+r"(i));  // counted on, not as many numbers kept
                }
            }
            copies_done<0>();
            if (parts > 1) cluster_wait();
        }
        share = -F32_INF;
        if (has_rest()) {
#pragma unroll
            for (u32 e = 0; e < 3; e++) {
                bad |= mend(rest[e]);
                if (end + e < scores.n) share = fmaxf(share, rest[e]);
            }
        }
#pragma unroll
        for (u32 j = 0; j < FOURS; j++) share = fmaxf(share, best[j]);
        const u64 laps = KEEPS ? 1 : 1 + (scores.n - 1) / lap();
        if (scores.n < 8 * k * laps) group = SCORE;
        else if (scores.n < 8 * k * laps * FOURS) group = FOUR;
    }

    // f(four, index) for every four, read again; all of a warp together.
    template <class F> __device__ __forceinline__ void each_four(F f) const {
        const u32 step = 4 * parts * THREADS;
        bool known = false;
        u32 i = first(0);
        float4 x[2] = {scores.fetch(i), scores.fetch(i + step)};
#pragma unroll 1
        for (; i - 4 * threadIdx.x < scores.n; i += step) {
            float4 four = x[0];
            x[0] = x[1];
            x[1] = scores.fetch(i + 2 * step);
            scores.settle(four, i, known);
            f(four, i);
        }
    }
    template <class F> __device__ __forceinline__ void each_score(float bound, F f) const {
        each_four([&](const float4& x, u32 i) {
            if (x.x >= bound) f(x.x, i);
            if (x.y >= bound) f(x.y, i + 1);
            if (x.z >= bound) f(x.z, i + 2);
            if (x.w >= bound) f(x.w, i + 3);
        });
    }

    // A hop: every block sends to every block, itself included, and waits for all. Two barriers take turns: a block starts a
    // hop when all have sent the one before, so it is at most one ahead of the slowest.
    __device__ __forceinline__ u32 hop_barrier() const { return shared_address(&s.hop[hops % 2]); }
    __device__ __forceinline__ void expect(u32 bytes) {
        if (threadIdx.x == 0) s.hop[hops % 2].expect(bytes);
    }
    __device__ __forceinline__ void wait() { s.hop[hops % 2].wait(hops / 2 % 2); }

    // The best and the worst over all threads of the cluster.
    __device__ __forceinline__ uint2 range(u32 most, u32 least) {
        most = __reduce_max_sync(FULL, most);
        least = __reduce_min_sync(FULL, least);
        if (lane() == 0) s.warps[warp()] = make_uint2(most, least);
        bad = __syncthreads_or(bad);
        if (parts == 1 || warp() == 0) {
            uint2 other = lane() < THREADS / WARP ? s.warps[lane()] : make_uint2(0, ~0u);
            most = __reduce_max_sync(FULL, other.x);
            least = __reduce_min_sync(FULL, other.y);
        }
        if (parts > 1) {
            expect(C * sizeof(u64));
            if (threadIdx.x < C) send(in_block(shared_address(&s.range[rank]), lane()), (u64)most << 32 | least, in_block(hop_barrier(), lane()));
            wait();
            hops++;
            u64 other = lane() < C ? s.range[lane()] : (u64)~0u;
            most = __reduce_max_sync(FULL, (u32)(other >> 32));
            least = __reduce_min_sync(FULL, (u32)other);
        }
        return make_uint2(most, least);
    }

    // Joins the blocks' histograms and finds the bin that holds the `need`-th entry, BINS for none: s.bin, s.before,
    // s.members (no fewer than COUNT_MAX where they are cut).
    __device__ __forceinline__ void join(u32 need) {
        __syncthreads();
        if (parts > 1) {
            expect(C * BINS * 2);
            u32 pieces = BINS / 8, i = threadIdx.x;
            if (i < C * pieces) {
                u32 block = i / pieces, piece = i % pieces;
                auto count = [&](u32 bin) { return min(COUNT_MAX, s.histogram[8 * piece + bin]); };
                uint4 x = make_uint4(count(0) | count(1) << 16, count(2) | count(3) << 16, count(4) | count(5) << 16, count(6) | count(7) << 16);
                send(in_block(shared_address(&s.joined[hops % 2][rank][4 * piece]), block), x, in_block(hop_barrier(), block));
            }
        }
        if (warp() == 0) {
            constexpr u32 PER_LANE = BINS / WARP;
            u32 count[PER_LANE];
            if (parts > 1) {
                wait();
                uint2 sum = make_uint2(0, 0);
#pragma unroll
                for (u32 b = 0; b < C; b++) {
                    uint2 x = ((const uint2*)s.joined[hops % 2][b])[lane()];
                    sum.x += x.x;
                    sum.y += x.y;
                }
                count[0] = sum.x & 0xffff, count[1] = sum.x >> 16, count[2] = sum.y & 0xffff, count[3] = sum.y >> 16;
            } else {
                uint4 x = ((const uint4*)s.histogram)[lane()];
                count[0] = x.x, count[1] = x.y, count[2] = x.z, count[3] = x.w;
            }
            u32 sum = count[0] + count[1] + count[2] + count[3], upto = sum;
#pragma unroll
            for (int d = 1; d < WARP; d *= 2) {
                u32 other = __shfl_up_sync(FULL, upto, d);
                if (lane() >= d) upto += other;
            }
            u32 there = __ballot_sync(FULL, upto >= need);
            if (there == 0) {
                if (lane() == 0) s.bin = BINS;
            } else if (lane() == __ffs(there) - 1) {
                u32 before = upto - sum, bin = PER_LANE * lane(), members = count[0];
#pragma unroll
                for (u32 i = 1; i < PER_LANE; i++) {
                    if (before + members < need) before += members, bin = PER_LANE * lane() + i, members = count[i];
                }
                s.bin = bin, s.before = before, s.members = members;
            }
        }
        if (parts > 1) hops++;
        __syncthreads();
    }

    // Takes the scores of a four that `wanted` says: to the list, and while there is place to block 0's inbox. All of a warp
    // together, so that they queue up once.
    template <class W> __device__ __forceinline__ void take(const float4& x, u32 i, bool to_inbox, W wanted) {
        const float score[4] = {x.x, x.y, x.z, x.w};
        u32 place[4], hits = 0, start = 0;
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            bool hit = wanted(score[e], i + e);
            u32 others = __ballot_sync(FULL, hit);
            place[e] = hit ? hits + __popc(others & lanes_before()) : ~0u;
            hits += __popc(others);
        }
        if (hits == 0) return;
        if (lane() == 0) start = atomicAdd(&s.found, hits);
        start = __shfl_sync(FULL, start, 0);
        const u32 inbox = in_block(shared_address(&s.inbox[rank * INBOX]), 0), barrier = in_block(shared_address(&s.inbox_barrier), 0);
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            if (place[e] == ~0u) continue;
            const u32 at = start + place[e];
            Candidate c = candidate(score[e], i + e);
            if (at < CAP) s.order.list[at] = c;
            if (to_inbox && at < INBOX) send(inbox + 8 * at, c, barrier);
        }
    }

    // Takes all scores of at least `bound`. A list of the fours that hold any comes first, so that the few are spread over all
    // threads.
    __device__ __forceinline__ void collect(float bound) {
        const u32 laps = KEEPS ? 1 : (scores.n + lap() - 1) / lap();
        u32 hits = 0, place = 0;
#pragma unroll
        for (u32 j = 0; j < FOURS; j++) hits += __popc(__ballot_sync(FULL, best[j] >= bound));
        if (hits) {
            if (lane() == 0) place = atomicAdd(&s.fours, hits * laps);
            place = __shfl_sync(FULL, place, 0);
#pragma unroll
            for (u32 j = 0; j < FOURS; j++) {
                const bool hit = best[j] >= bound;
                const u32 others = __ballot_sync(FULL, hit);
                const u32 own = place + __popc(others & lanes_before()) * laps;
                place += __popc(others) * laps;
                for (u32 l = 0; hit && l < laps; l++) {
                    if (own + l >= LIMIT) break;
                    if (KEEPS) s.four[own + l] = kept[j];
                    s.order.work[own + l] = l * lap() + first(j);
                }
            }
        }
        bool known = false;
        if (has_rest()) {
            const u32 own = atomicAdd(&s.fours, 1u);
            if (own < LIMIT) {
                if (KEEPS) s.four[own] = scores.any(scores.end(), known);
                s.order.work[own] = scores.end();
            }
        }
        __syncthreads();
        const u32 fours = s.fours;
        if (fours > LIMIT) {  // too many to look at one by one
            if (threadIdx.x == 0) s.found = CAP + 1;
            return;
        }
#pragma unroll 1
        for (u32 w = threadIdx.x; w - lane() < fours; w += THREADS) {
            const bool there = w < fours;
            const u32 i = there ? s.order.work[w] : 0;
            float4 x = make_float4(-F32_INF, -F32_INF, -F32_INF, -F32_INF);
            if (there) x = KEEPS ? s.four[w] : scores.any(i, known);
            take(x, i, parts > 1, [&](float x, u32) { return x >= bound; });
        }
    }

    // Candidates of the cluster; how many are before this block's, how many block 0's inbox gets, and whether that is not all.
    struct Counts {
        u32 total, before, sent, most;
        bool all_sent;
    };
    __device__ __forceinline__ Counts count(bool to_inbox) {
        __syncthreads();
        u32 own = s.found;
        if (parts == 1) return {own, 0, 0, own, false};
        expect(C * sizeof(u32));
        if (threadIdx.x < C) {
            u32 sent = to_inbox && s.fours <= LIMIT ? min(own, INBOX) : 0;
            u32 word = min(own, 0xffffu) | sent << 16 | (bad ? NONFINITE : 0);
            send(in_block(shared_address(&s.counts[rank]), lane()), word, in_block(hop_barrier(), lane()));
        }
        wait();
        hops++;
        u32 word = lane() < C ? s.counts[lane()] : 0, found = word & 0xffff, sent = word >> 16 & 0x7fff;
        bad = __any_sync(FULL, word & NONFINITE);
        return {__reduce_add_sync(FULL, found), __reduce_add_sync(FULL, lane() < rank ? found : 0), __reduce_add_sync(FULL, sent),
                __reduce_max_sync(FULL, found), !__any_sync(FULL, found != sent)};
    }

    // A histogram of what `add` counts in, joined.
    template <class F> __device__ __forceinline__ void level(u32 need, F add) {
        __syncthreads();
        if (threadIdx.x < BINS) s.histogram[threadIdx.x] = 0;
        if (threadIdx.x == 0) s.found = 0;
        __syncthreads();
        add();
        join(need);
    }

    // More than CAP scores lie between `least`, not above the k-th best, and `most`: takes CAP or fewer, among them the k best.
    // The worst that it takes.
    __device__ __forceinline__ float cut(u32 most, u32 least) {
        u32 lo = least, hi = most, above = 0, last = ~0u;  // `above` scores lie above hi
        bool fits = false;
        while (lo < hi && !fits) {
            // The last bin is of lo alone, which often is the k-th best.
            u32 distance = hi - lo - 1, shift = max(0, 25 - __clz(distance));
            shift += distance >> shift > BINS - 2;
            level(k - above, [&] {
                u32 bin = 0, times = 0;  // of equal scores one after the other
                each_score(value_of(lo), [&](float x, u32) {
                    u32 key = ordered(x);
                    if (key > hi) return;
                    u32 b = key == lo ? BINS - 1 : (hi - key) >> shift;
                    if (b != bin) {
                        if (times) atomicAdd(&s.histogram[bin], times);
                        bin = b, times = 0;
                    }
                    times++;
                });
                if (__all_sync(FULL, bin == __shfl_sync(FULL, bin, 0))) {
                    times = __reduce_add_sync(FULL, times);
                    if (lane() != 0) times = 0;
                }
                if (times) atomicAdd(&s.histogram[bin], times);
            });
            u32 bin = s.bin;
            if (bin == BINS) break;  // fewer than k: all are taken
            above += s.before;
            fits = above + s.members < COUNT_MAX;
            if (bin == BINS - 1) {
                hi = lo;
            } else {
                lo = max(lo + 1, hi - min(hi, ((bin + 1) << shift) - 1));
                hi -= bin << shift;
            }
        }
        const float worst = value_of(lo);
        u32 from = 0;
        while (lo == hi && !fits) {
            // Only lo is left: its first scores in order of the index. A warp's fours lie in one bin.
            last = min(last, scores.n - 1);
            u32 shift = max(7, 25 - __clz(last - from));
            level(k - above, [&] {
                each_four([&](const float4& x, u32 i) {
                    const float score[4] = {x.x, x.y, x.z, x.w};
                    u32 ties = 0;
#pragma unroll
                    for (u32 e = 0; e < 4; e++) ties += score[e] == worst && i + e >= from && i + e <= last;
                    ties = __reduce_add_sync(FULL, ties);
                    if (lane() == 0 && ties) atomicAdd(&s.histogram[(i - from) >> shift], ties);
                });
            });
            if (s.bin == BINS) break;
            above += s.before;
            fits = above + s.members < COUNT_MAX;
            from += s.bin << shift;
            last = min(last, from + (1u << shift) - 1);
        }
        __syncthreads();
        each_four([&](const float4& x, u32 i) {
            take(x, i, false, [&](float score, u32 i) { return score > worst || (score == worst && i <= last); });
        });
        return worst;
    }

    // The row's candidates, at most CAP, to the threads of block 0. False where this block is done.
    __device__ __forceinline__ bool find(Candidate (&own)[OWN], Given& all) {
        load();
        // The groups' best. Of single scores those of the fours, which are not lower than the worst.
        u32 most = share >= -F32_MAX ? ordered(share) : 0, least = most ? most : ~0u;
        if (group != SHARE) {
#pragma unroll
            for (u32 j = 0; j < FOURS; j++) least = best[j] >= -F32_MAX ? min(least, ordered(best[j])) : least;
        }
        const uint2 ends = range(most, least);
        most = ends.x, least = ends.y;
        all.top = value_of(most), all.worst = value_of(least);
        if (most == 0) return rank == 0;  // nothing can be selected

        const Linear bins(all.top, all.worst, BINS);
        auto add = [&](float x) {
            u32 bin = bins.bin(x);
            bool there = x >= -F32_MAX;
            u32 leader = __shfl_sync(FULL, bin, 0);
            if (__all_sync(FULL, there && bin == leader)) {
                if (lane() == 0) atomicAdd(&s.histogram[bin], WARP);
            } else if (there) {
                atomicAdd(&s.histogram[bin], 1u);
            }
        };
        if (group == SHARE) {
            add(share);
        } else if (group == FOUR) {
#pragma unroll
            for (u32 j = 0; j < FOURS; j++) add(best[j]);
        } else {
            each_score(-F32_MAX, [&](float x, u32) { atomicAdd(&s.histogram[bins.bin(x)], 1u); });
        }
        join(k);
        const bool enough = s.bin < BINS;
        float bound = -F32_MAX;
        if (enough && s.bin < BINS - 1) {
            // Low enough for all of bins 0 to s.bin, rounding included.
            float distance = __fmaf_ru((float)(s.bin + 1) / bins.scale, 2.001f, 1e-35f);
            bound = fmaxf(-F32_MAX, __fsub_rd(all.top, distance));
        }
        if (enough && group != SCORE) bound = fmaxf(bound, all.worst);  // as all groups' best are
        const bool crowd = enough && s.before + s.members > k + CAP / 4;
        if (!crowd) collect(bound);
        Counts counts = count(!crowd);
        const bool nonfinite = bad;
        const u32 sent = counts.sent;
        const bool many = crowd || counts.total > CAP;
        if (many) {
            u32 lowest = ~0u;  // of the groups that reach the bound: not above the k-th best score
            if (group == SHARE) {
                if (share >= bound) lowest = ordered(share);
            } else {
#pragma unroll
                for (u32 j = 0; j < FOURS; j++) lowest = best[j] >= bound ? min(lowest, ordered(best[j])) : lowest;
            }
            lowest = range(0, lowest).y;
            bound = cut(most, enough && group != SCORE ? lowest : ordered(bound));
            counts = count(false);
            bad = nonfinite;
        }
        if (enough) all.worst = bound;
        if (parts > 1 && !counts.all_sent) {
            if (rank > 0) {
                u32 list = in_block(shared_address(s.order.list + counts.before), 0), barrier = in_block(shared_address(&s.rest_barrier), 0);
                for (u32 i = threadIdx.x; i < s.found; i += THREADS) send(list + 8 * i, s.order.list[i], barrier);
                return false;
            }
            if (threadIdx.x == 0) s.rest_barrier.expect(8 * (counts.total - s.found));
            s.rest_barrier.wait(0);
        } else if (rank > 0) {
            return false;
        }
        if (parts > 1) {
            // This block goes on alone, when all that was sent to it is here.
            if (threadIdx.x == 0) s.inbox_barrier.expect(8 * sent);
            s.inbox_barrier.wait(0);
        }
        constexpr u32 TEAM = THREADS / C;  // threads for a block's candidates
        const bool by_block = counts.all_sent;
        const u32 block = threadIdx.x / TEAM;
        const u32 end = by_block ? s.counts[block] & 0xffff : counts.total;
        const u32 start = by_block ? threadIdx.x % TEAM : threadIdx.x, step = by_block ? TEAM : THREADS;
        const Candidate* from = by_block ? s.inbox + block * INBOX : s.order.list;
#pragma unroll
        for (u32 e = 0; e < OWN; e++) own[e] = start + e * step < end ? from[start + e * step] : 0;
        all.used = ((by_block ? counts.most : counts.total) + step - 1) / step;
        all.same = false;
        if (many) {
            u32 high = 0, low = ~0u;
#pragma unroll
            for (u32 e = 0; e < OWN; e++) {
                const u32 key = (u32)(own[e] >> 32);
                high = max(high, key);
                low = key ? min(low, key) : low;
            }
            all.same = __reduce_max_sync(FULL, high) == __reduce_min_sync(FULL, low);
        }
        return true;
    }
};
