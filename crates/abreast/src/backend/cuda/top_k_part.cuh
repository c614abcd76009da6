// How top_k_hopper.cu finds a row's candidates.

// Where a block has the scores of its part: in registers, in shared memory, or nowhere.
enum Hold { KEPT, HELD, READ };

// One block's part of a row of up to parts * THREADS * FOURS * 4 scores, or, where they are read again, of any row.
template <int THREADS, int FOURS, Hold HOLD> struct Part : Blocks {
    static constexpr bool KEEPS = HOLD == KEPT;
    const Scores scores;
    float4 kept[KEEPS ? FOURS : 1];
    // Unless they are kept: the best of each four, of a row too long of the fours of every lap, and in which lap, 4 bits each.
    float best_kept[KEEPS ? 1 : FOURS];
    u32 laps_of_best = 0;
    static_assert(KEEPS || FOURS <= 8, "bits");
    float share;          // the best of a thread's scores
    bool listed = false;  // the fours that matter are
    enum Group { SHARE, FOUR, SCORE } group = SHARE;

    static constexpr int OWN = CAP / THREADS;
    static constexpr u32 LIMIT = HOLD == HELD ? 2048 : CAP;  // most fours that are looked at one by one
    static_assert(HOLD != HELD || LIMIT * sizeof(u32) <= sizeof(Shared::joined), "the list's place");
    // The list of fours that hold candidates, and a thread's fours where they are held.
    __device__ __forceinline__ u32* work() const { return HOLD == HELD ? (u32*)s.joined : s.order.work; }
    __device__ __forceinline__ float4& held(u32 slot) const { return ((float4*)s.order.span)[slot]; }
    __device__ __forceinline__ float4 four(u32 j) const {
        if constexpr (KEEPS) return kept[j];
        else return held(j * THREADS + threadIdx.x);
    }

    // Warps of all blocks take turns, so that scores which depend on the place are spread evenly.
    __device__ __forceinline__ u32 first(u32 j) const { return 4 * (j * step() + (warp() * parts() + rank) * WARP + lane()); }
    __device__ __forceinline__ u32 index_of_slot(u32 slot) const {
        const u32 thread = slot % THREADS;
        return 4 * (slot / THREADS * step() + (thread / WARP * parts() + rank) * WARP + thread % WARP);
    }
    __device__ __forceinline__ u32 step() const { return THREADS << bits; }
    __device__ __forceinline__ u32 lap() const { return 4 * step() * FOURS; }
    __device__ __forceinline__ u32 laps() const { return HOLD != READ ? 1 : (scores.n - 1 >> 31 - __clz(lap())) + 1; }

    __device__ __forceinline__ float best(u32 j) const {
        if constexpr (KEEPS) return best_of(kept[j]);
        else return best_kept[j];
    }
    // Where that four begins, or a later index.
    __device__ __forceinline__ u32 begins(u32 j) const {
        if constexpr (HOLD != READ) return first(j);
        const u32 l = laps_of_best >> 4 * j & 15;
        return l < 15 ? l * lap() + first(j) : scores.n;
    }

    // The row's last 1 to 3 scores, which make no four: of no group, and for the thread to look at that has that place.
    __device__ __forceinline__ bool has_rest() const { return HOLD == READ && scores.n % 4 && first(0) == (scores.end() & (4 * step() - 1)); }

    __device__ __forceinline__ void load() {
        if constexpr (KEEPS) {
            scores.fetch(kept, [&](u32 j) { return first(j); });
            if (parts() > 1) cluster_wait();
#pragma unroll
            for (u32 j = 0; j < FOURS; j++) scores.settle(kept[j], first(j), bad);
        } else if constexpr (HOLD == HELD) {
#pragma unroll
            for (u32 half = 0; half < FOURS; half += 4) {
                float4 x[4];
                scores.fetch(x, [&](u32 j) { return first(half + j); });
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    scores.settle(x[j], first(half + j), bad);
                    held((half + j) * THREADS + threadIdx.x) = x[j];
                    best_kept[half + j] = best_of(x[j]);
                }
            }
            if (parts() > 1) cluster_wait();
        } else {
#pragma unroll
            for (u32 j = 0; j < FOURS; j++) best_kept[j] = -F32_INF;
            u32 i = first(0);
#pragma unroll 1
            for (u32 l = 0; l < laps(); l++) {
#pragma unroll
                for (u32 half = 0; half < FOURS; half += 4) {
                    float4 x[4];
                    scores.fetch_whole(x, [&](u32 j) { return i + j * 4 * step(); });
#pragma unroll
                    for (u32 j = 0; j < 4; j++) {
                        if (!all_finite(x[j])) bad |= mend(x[j]);
                        const float of_four = i < scores.end() ? best_of(x[j]) : -F32_INF;
                        if (of_four > best_kept[half + j]) {
                            best_kept[half + j] = of_four;
                            const u32 bits = 15u << 4 * (half + j);
                            laps_of_best = (laps_of_best & ~bits) | (min(l, 15u) * 0x11111111u & bits);
                        }
                        i += 4 * step();
                    }
                    asm volatile("" : "+r"(i)::"memory");  // counted on, and no loads before their turn: registers are few
                }
            }
            if (parts() > 1) cluster_wait();
        }
        share = best(0);
#pragma unroll
        for (u32 j = 1; j < FOURS; j++) share = fmaxf(share, best(j));
    }

    // f(four, index) for every four that is listed, or else of the block's part, read again; all of a warp together.
    template <class F> __device__ __forceinline__ void each_four(F f) {
        if constexpr (HOLD == HELD) {
            const u32 end = listed ? s.fours : FOURS * THREADS;
#pragma unroll 1
            for (u32 at = threadIdx.x; at - lane() < end; at += THREADS) {
                const u32 slot = !listed ? at : at < end ? work()[at] : 0;
                float4 x = held(slot);
                if (at >= end) x = make_float4(-F32_INF, -F32_INF, -F32_INF, -F32_INF);
                f(x, index_of_slot(slot));
            }
        } else {
            const u32 further = listed ? THREADS : 4 * step(), end = listed ? s.fours : scores.n;
#pragma unroll 1
            for (u32 at = listed ? threadIdx.x : first(0); at - (listed ? lane() : 4 * lane()) < end; at += 2 * further) {
                // Two at a time, both under way.
                auto index = [&](u32 j) {
                    const u32 there = at + j * further;
                    return there >= end ? scores.n : listed ? work()[there] : there;
                };
                const u32 i[2] = {index(0), index(1)};
                float4 x[2];
                scores.fetch(x, [&](u32 j) { return i[j]; });
#pragma unroll
                for (u32 j = 0; j < 2; j++) {
                    scores.settle(x[j], i[j], bad);
                    f(x[j], i[j]);
                }
            }
        }
    }
    // f(score, index) for every score that may be sought; all of a warp together.
    template <class F> __device__ __forceinline__ void each_score(F f) {
        auto four = [&](const float4& x, u32 i) { f(x.x, i), f(x.y, i + 1), f(x.z, i + 2), f(x.w, i + 3); };
        if constexpr (KEEPS) {
#pragma unroll
            for (u32 j = 0; j < FOURS; j++) four(kept[j], first(j));
        } else {
            each_four(four);
        }
    }
    // f(best, index) for every group: an index that is not before that of its best score.
    template <class F> __device__ __forceinline__ void each_group(F f) {
        if (group == SCORE) return each_score(f);
        u32 i = begins(0);
        if (group == SHARE) {
            i = scores.n;
#pragma unroll
            for (u32 j = 0; j < FOURS; j++) i = best(j) == share ? min(i, begins(j)) : i;
        }
        f(group == SHARE ? share : best(0), i + 3);
        if (group == SHARE) return;
#pragma unroll
        for (u32 j = 1; j < FOURS; j++) f(best(j), begins(j) + 3);
    }

    // f(ties, index) for groups that have the score: how many times, and an index that is not before the last of those. Of kept
    // scores groups of 32 neighbours.
    template <class F> __device__ __forceinline__ void each_tie(float score, F f) {
        if constexpr (HOLD != READ) {
#pragma unroll
            for (u32 j = 0; j < FOURS; j++) {
                const float4 x = four(j);
                u32 ties = (x.x == score) + (x.y == score) + (x.z == score) + (x.w == score);
#pragma unroll
                for (int d = 1; d < 8; d *= 2) ties += __shfl_xor_sync(FULL, ties, d);
                if (ties && lane() % 8 == 0) f(ties, first(j) + WARP - 1);
            }
        } else {
            each_group([&](float x, u32 i) {
                if (x == score) f(1u, i);
            });
        }
    }

    // Groups of which too many are in one bin.
    struct Crowd {
        uint2 ends;  // their best and worst as `ordered`
        Linear line;
        u32 bin;  // BINS for all
        u32 need, enough;
    };

    // Narrows the bound: enough groups of the block reach it, and few more; or all, where there are fewer. And their best score.
    // Whether that failed.
    __device__ __forceinline__ bool seek(Bound& bound, float& top, Crowd& crowd) {
        float low = F32_INF;
        each_group([&](float x, u32) {
            top = fmaxf(top, x);
            low = x >= -F32_MAX ? fminf(low, x) : low;
        });
        const bool any = top >= -F32_MAX;
        const uint2 ends = range<THREADS>(any ? ordered(top) : 0, any ? ordered(low) : ~0u, false);
        top = -F32_MAX;
        if (ends.x == 0) return false;  // nothing can be selected
        top = value_of(ends.x);
        const Linear line(top, value_of(ends.y), BINS);
        each_group([&](float x, u32) {
            if (x >= -F32_MAX) atomicAdd(&s.histogram[line.bin(x)], 1u);
        });
        const u32 need = (s.to.k + parts() - 1) >> bits, enough = need + need / 4 + 32;
        const Bin found = bin_of(need, false);
        if (found.bin == BINS) return false;
        if (found.before + found.members > enough) {
            crowd = {ends, line, found.bin, need - found.before, enough - found.before};
            return true;
        }
        // Low enough for all of those bins, rounding included.
        const float distance = __fmaf_ru(__fdividef((float)(found.bin + 1), line.scale), 2.001f, 1e-35f);
        bound.score = found.bin < BINS - 1 ? fmaxf(value_of(ends.y), __fsub_rd(top, distance)) : value_of(ends.y);
        return false;
    }

    // The same for a crowd, by the bits of scores, and where all are equal, by the index; or jointly for the whole cluster.
    __device__ __forceinline__ void narrow(Bound& bound, const Crowd& crowd, bool joint) {
        u32 need = crowd.need, enough = crowd.enough, hi = crowd.ends.x, lo = crowd.ends.y, in_bin = crowd.bin, shift = 0;
        bool linear = true;
#pragma unroll 1
        for (;;) {
            // What is left lies between these.
            u32 most = 0, least = ~0u;
            each_group([&](float x, u32) {
                const u32 key = ordered(x);
                if (key < lo || key > hi || x < -F32_MAX) return;
                if (in_bin < BINS && (linear ? crowd.line.bin(x) : (hi - key) >> shift) != in_bin) return;
                most = max(most, key);
                least = min(least, key);
            });
            empty_histogram();
            const uint2 ends = range<THREADS>(most, least, joint);
            hi = ends.x, lo = ends.y, linear = false;
            bound.score = value_of(hi);
            if (hi == lo) break;
            shift = hi - lo < BINS ? 0 : 25 - __clz(hi - lo);
            each_group([&](float x, u32) {
                const u32 key = ordered(x);
                if (key >= lo && key <= hi && x >= -F32_MAX) atomicAdd(&s.histogram[(hi - key) >> shift], 1u);
            });
            const Bin found = bin_of(need, joint);
            in_bin = found.bin;
            if (found.before + found.members <= enough) {
                bound.score = value_of(hi - min(hi - lo, ((in_bin + 1) << shift) - 1));
                return;
            }
            need -= found.before;
            enough -= found.before;
        }
        // Finer and finer steps towards the first index: four to a doubling, from `first` on.
        constexpr u32 FINEST = 64, LOWEST = 0x42800000u >> 21;  // the latter: FINEST as f32, of whose fraction 2 bits are left
        auto step = [&](u32 bin) { return (u32)__uint_as_float((bin + LOWEST) << 21) - FINEST; };
        u32 first = 0;
        hi = scores.n + WARP;
#pragma unroll 1
        for (;;) {
            each_tie(bound.score, [&](u32 ties, u32 i) {
                if (i >= first && i <= hi) atomicAdd(&s.histogram[(__float_as_uint((float)(i - first + FINEST)) >> 21) - LOWEST], ties);
            });
            const Bin found = bin_of(need, joint);
            hi = min(hi, first + step(found.bin + 1) - 1);
            first += step(found.bin);
            if (found.before + found.members <= enough || hi - first < WARP) break;
            need -= found.before;
            enough -= found.before;
            empty_histogram();
            __syncthreads();
        }
        bound.last = hi;
    }
    // Takes those of a thread's scores that reach the bound: to the list, and while there is place to block 0's inbox. Few do: a
    // turn of the warp takes one of every lane that has any left.
    template <int J, class F> __device__ __forceinline__ void take(const float4 (&x)[J], F index, const Bound& bound, bool to_inbox) {
        float score[4 * J];
        u32 mask = 0;
#pragma unroll
        for (u32 j = 0; j < J; j++) {
            const float least = bound.of_four(index(j));
            score[4 * j] = x[j].x, score[4 * j + 1] = x[j].y, score[4 * j + 2] = x[j].z, score[4 * j + 3] = x[j].w;
#pragma unroll
            for (u32 e = 4 * j; e < 4 * j + 4; e++) mask |= (u32)(score[e] >= least) << e;
        }
        const u32 all = __reduce_add_sync(FULL, (u32)__popc(mask));
        if (all == 0) return;
        u32 start = 0;
        if (lane() == 0) start = atomicAdd(&s.found, all);
        start = __shfl_sync(FULL, start, 0);
        if (start + all > CAP) return;  // too many
        const u32 inbox = in_block(shared_address(&s.inbox[rank * inbox_size()]), 0), barrier = in_block(shared_address(&s.inbox_barrier), 0);
        for (u32 left; (left = __ballot_sync(FULL, mask != 0)) != 0; mask &= mask - 1) {
            if (mask) {
                const u32 bit = __ffs(mask) - 1, at = start + __popc(left & ((1u << lane()) - 1));
                const Found found = {index(bit / 4) + bit % 4, pick(score, bit)};
                s.order.list[at] = found;
                if (to_inbox && at < inbox_size()) send(inbox + 8 * at, *(const u64*)&found, barrier);
            }
            start += __popc(left);
        }
    }

    // Takes the scores that reach the bound.
    __device__ __forceinline__ void collect(const Bound& bound, bool to_inbox) {
        if constexpr (KEEPS) {
            take(kept, [&](u32 j) { return first(j); }, bound, to_inbox);
        } else {
            if (group != SCORE) {
                list(bound);
                __syncthreads();
                listed = s.fours <= LIMIT;
            }
            each_four([&](const float4& x, u32 i) {
                const float4 one[1] = {x};
                take(one, [&](u32) { return i; }, bound, to_inbox);
            });
            if (HOLD == HELD) listed = false;  // its place has other uses
        }
    }

    // Lists the fours that hold such scores, so that the few are spread over all threads.
    __device__ __forceinline__ void list(const Bound& bound) {
        u32 above = 0, equal = 0;
        const float next = value_of(ordered(bound.score) + 1);
#pragma unroll
        for (u32 j = 0; j < FOURS; j++) {
            above |= (best(j) >= next) << j;
            equal |= (best(j) == bound.score && first(j) <= bound.last) << j;
        }
        // Scores equal to the bound are in laps from that of the best to that of the last index.
        auto first_lap = [&](u32 j) { return equal >> j & 1 ? laps_of_best >> 4 * j & 15 : 0; };
        auto last_lap = [&](u32 j) { return equal >> j & 1 ? min(laps(), (bound.last - first(j) >> 31 - __clz(lap())) + 1) : laps(); };
        u32 own = has_rest();
        for (u32 mask = above | equal; mask; mask &= mask - 1) {
            const u32 j = __ffs(mask) - 1, f = first_lap(j), u = last_lap(j);
            own += HOLD == HELD ? 1 : max(f, u) - f;
        }
        const u32 all = __reduce_add_sync(FULL, own);
        if (all == 0) return;
        u32 start = 0;
        if (lane() == 0) start = atomicAdd(&s.fours, all);
        const u32 upto = sum_to_lane(own);
        start = __shfl_sync(FULL, start, 0);
        if (start + all > LIMIT) return;
        u32* to = work() + start + upto - own;
        for (u32 mask = above | equal; mask; mask &= mask - 1) {
            const u32 j = __ffs(mask) - 1;
            if (HOLD == HELD) *to++ = j * THREADS + threadIdx.x;
            else for (u32 l = first_lap(j); l < last_lap(j); l++) *to++ = l * lap() + first(j);
        }
        if (has_rest()) *to = scores.end();
    }

    // The row's candidates, at most CAP, to the threads of block 0. False where this block is done.
    __device__ __forceinline__ bool find(Candidate (&own)[OWN], Given& all, u32 k) {
        // The largest groups of which there are 2k.
        if (scores.n < 8 * k * laps()) group = SCORE;
        else if (scores.n / FOURS < 8 * k * laps()) group = FOUR;
        load();
        Bound bound = {-F32_MAX, ~0u};
        all.top = -F32_MAX;
        Counts counts;
        u32 sent = 0;
#pragma unroll 1
        for (bool again = false;; again = true) {
            Crowd crowd = {make_uint2(~0u, ordered(bound.score)), Linear(0.0f, 0.0f, 1), BINS, 0, COUNT_MAX - 2 * WARP};
            if (again) crowd.need = s.to.k;
            if (again || seek(bound, all.top, crowd)) narrow(bound, crowd, again && parts() > 1);
            if (!again && parts() > 1) agree(bound, all.top);
            collect(bound, parts() > 1 && !again);
            counts = count(!again);
            if (!again) sent = counts.sent;
            if (counts.total <= CAP) break;
            // Many in a group: the scores themselves.
            __syncthreads();
            if (threadIdx.x == 0) s.found = 0;
            group = SCORE;
            bound.last = ~0u;
        }
        all.worst = bound.score;
        all.last = bound.last | 3;
        if (parts() > 1 && !counts.all_sent) {
            if (rank > 0) {
                u32 list = in_block(shared_address(s.order.list + counts.before), 0), barrier = in_block(shared_address(&s.rest_barrier), 0);
                for (u32 i = threadIdx.x; i < s.found; i += THREADS) send(list + 8 * i, *(u64*)&s.order.list[i], barrier);
                return false;
            }
            if (threadIdx.x == 0) s.rest_barrier.expect(8 * (counts.total - s.found));
            s.rest_barrier.wait(0);
        } else if (rank > 0) {
            return false;
        }
        if (parts() > 1) {
            // This block goes on alone, when all that was sent to it is here.
            if (threadIdx.x == 0) s.inbox_barrier.expect(8 * sent);
            s.inbox_barrier.wait(0);
        }
        const u32 team = THREADS >> bits;  // threads for a block's candidates
        const bool by_block = counts.all_sent;
        const u32 block = threadIdx.x >> (31 - __clz(team));
        const u32 end = by_block ? s.counts[block] & 0xffff : counts.total, most = by_block ? counts.most : counts.total;
        const u32 start = by_block ? threadIdx.x & (team - 1) : threadIdx.x, step = by_block ? team : THREADS;
        const Found* from = (by_block ? s.inbox + block * inbox_size() : s.order.list) + start;
        all.used = 0;
#pragma unroll
        for (u32 e = 0; e < OWN; e++) own[e] = 0;
#pragma unroll
        for (u32 e = 0; e < OWN; e++) {
            if (e * step >= most) break;
            all.used = e + 1;
            const Found found = from[e * step];
            if (start + e * step < end) own[e] = candidate(found.score, found.index);
        }
        return true;
    }
};
