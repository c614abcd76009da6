// Sparse attention in five steps: check the indices, logits, softmax weights in their place, weighted values, and the look at
// what came out. Logits [rows][heads][width] lie in scratch; nothing else is materialised. Fast has its own logits and values.

struct Head {
    device const ushort* q;      // bf16 [queries][heads][dim]
    device const float* sinks;   // [heads], or null
    device ushort* out;          // bf16 [outputs][heads][dim]
    device uint* status;         // [rows], or null
    float scale;
    uint heads, dim;
    uint width;                  // of the scratch: more than every row's
    uint rows, pad;
};

struct Row {
    device const ushort* kv;     // bf16 [kv_len][dim]
    device const int* indices;   // [width]
    ulong query, out;            // rows of q and out
    long kv_len;
    uint width;
    uint active;                 // 0: a padding entry that writes nothing
};

// What a row's first look found, in scratch before the logits.
struct Found {
    int attended;   // slots that are not skipped; -1: an index is invalid
    uint suspect;   // a logit or sink was not finite
};

inline device const Row& row_of(device const Head& head, uint r) { return ((device const Row*)(&head + 1))[r]; }

inline device Found& found(device uchar* scratch, uint r) { return ((device Found*)scratch)[r]; }

inline device float* logits(device const Head& head, device uchar* scratch, uint2 row_and_head) {
    ulong start = (ulong(head.rows) * sizeof(Found) + 255) & ~255ul;
    return (device float*)(scratch + start) + (ulong(row_and_head.x) * head.heads + row_and_head.y) * head.width;
}

// One threadgroup a row.
[[kernel, max_total_threads_per_threadgroup(256)]] void attention_check(ARGUMENTS) {
    threadgroup atomic_uint attended;
    threadgroup atomic_uint invalid;
    uint r = block.x;
    device const Row& row = row_of(head, r);
    if (thread_id == 0) {
        atomic_store_explicit(&attended, 0u, memory_order_relaxed);
        atomic_store_explicit(&invalid, 0u, memory_order_relaxed);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (row.active) {
        uint mine = 0;
        bool bad = false;
        for (uint j = thread_id; j < row.width; j += block_size.x) {
            int index = row.indices[j];
            mine += index != NO_INDEX ? 1 : 0;
            bad = bad || index < NO_INDEX || index >= row.kv_len;
        }
        if (mine) atomic_fetch_add_explicit(&attended, mine, memory_order_relaxed);
        if (bad) atomic_store_explicit(&invalid, 1u, memory_order_relaxed);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_id == 0) {
        bool bad = atomic_load_explicit(&invalid, memory_order_relaxed) != 0;
        device Found& f = found(scratch, r);
        f.attended = bad ? -1 : int(atomic_load_explicit(&attended, memory_order_relaxed));
        f.suspect = 0;
        if (row.active && head.status) head.status[r] = bad ? INVALID_INDEX : 0;
    }
}

// Grid (16 slots each, rows); a simdgroup takes 4 slots.
[[kernel, max_total_threads_per_threadgroup(128)]] void attention_logits(ARGUMENTS) {
    uint r = block.y;
    device const Row& row = row_of(head, r);
    if (!row.active || found(scratch, r).attended <= 0) return;
    uint first = (block.x * 4 + warp) * PAIR_COLUMNS;
    if (first >= row.width) return;
    Columns columns;
    bool taken = false;
#pragma unroll
    for (uint c = 0; c < PAIR_COLUMNS; c++) {
        int index = first + c < row.width ? row.indices[first + c] : NO_INDEX;
        columns.row[c] = index != NO_INDEX ? row.kv + ulong(index) * head.dim : nullptr;
        taken = lane % PAIR_COLUMNS == c ? index != NO_INDEX : taken;
    }
    for (uint h = 0; h < head.heads; h += PAIR_HEADS) {
        device const ushort* q = head.q + (row.query * head.heads + h) * head.dim;
        float dot = pair_dots(q, columns, head.heads - h, uint2(lane, head.dim));
        uint own = h + lane / PAIR_COLUMNS, j = first + lane % PAIR_COLUMNS;
        if (own < head.heads && j < row.width)
            logits(head, scratch, uint2(r, own))[j] = taken ? dot * head.scale : -F32_INF;
    }
}

// Grid (32 slots and 64 heads each, rows), in matrices: every selected cache row is read once for 64 heads.
[[kernel, max_total_threads_per_threadgroup(256)]] void attention_logits_fast(ARGUMENTS) {
    threadgroup float tile[TILE_FLOATS];
    threadgroup long offset[TILE];
    uint r = block.y;
    device const Row& row = row_of(head, r);
    if (!row.active || found(scratch, r).attended <= 0) return;
    uint parts = (head.heads + TILE_HEADS - 1) / TILE_HEADS;
    uint first = (block.x / parts) * TILE, h0 = (block.x % parts) * TILE_HEADS;
    if (first >= row.width) return;
    if (thread_id < TILE) {
        int index = first + thread_id < row.width ? row.indices[first + thread_id] : NO_INDEX;
        offset[thread_id] = index != NO_INDEX ? long(index) * head.dim : -1;
    }
    uint heads = min(head.heads - h0, TILE_HEADS);
    TileDots dots = {head.q + (row.query * head.heads + h0) * head.dim, row.kv, heads, head.dim};
    tile_dots(dots, tile, offset, uint2(thread_id, warp));
    for (uint i = thread_id; i < heads * TILE; i += TILE_THREADS) {
        uint h = i / TILE, c = i % TILE;
        if (first + c < row.width)
            logits(head, scratch, uint2(r, h0 + h))[first + c] =
                offset[c] >= 0 ? tile[h * PITCH + c] * head.scale : -F32_INF;
    }
}

// One simdgroup a row and head. The weights take the logits' place; the sum of all takes the last place.
[[kernel, max_total_threads_per_threadgroup(128)]] void attention_softmax(ARGUMENTS) {
    uint r = block.y, h = block.x * 4 + warp;
    device const Row& row = row_of(head, r);
    if (!row.active || h >= head.heads || found(scratch, r).attended <= 0) return;
    device float* w = logits(head, scratch, uint2(r, h));
    float most = -F32_INF;
    bool bad = false;
    for (uint j = lane; j < row.width; j += LANES) {
        if (row.indices[j] == NO_INDEX) continue;
        bad = bad || !is_finite(w[j]);
        most = fmax(most, w[j]);
    }
    for (ushort s = LANES / 2; s > 0; s /= 2) most = fmax(most, simd_shuffle_xor(most, s));
    float sum = 0.0f;
    if (head.sinks) {
        float sink = head.sinks[h];
        bad = bad || !is_finite(sink);
        most = fmax(most, sink);
        if (lane == 0) sum = exp_ref(sink - most);
    }
    bad = simd_any(bad);
    if (bad && lane == 0)
        atomic_store_explicit((device atomic_uint*)&found(scratch, r).suspect, 1u, memory_order_relaxed);
    for (uint j = lane; j < row.width; j += LANES) {
        float weight = exp_ref(w[j] - most);
        w[j] = weight;
        sum = sum + weight;
    }
    sum = tree(sum);
    if (lane == 0) w[head.width - 1] = bad ? F32_NAN : sum;
}

// A result that is not finite, and one that rounding makes so, are for the last step to find.
inline ushort rounded(float value) { return is_finite(value) ? narrow(value) : 0x7fc0; }

// Grid (4 heads each, rows); a thread has the features f, f + 256, ... of all of them.
constant constexpr uint SUM_HEADS = 4;
[[kernel, max_total_threads_per_threadgroup(256)]] void attention_values(ARGUMENTS) {
    uint r = block.y, h0 = block.x * SUM_HEADS;
    device const Row& row = row_of(head, r);
    if (!row.active || found(scratch, r).attended <= 0) return;
    uint heads = min(SUM_HEADS, head.heads - h0);
    device const float* w = logits(head, scratch, uint2(r, h0));
    device ushort* out = head.out + (row.out * head.heads + h0) * head.dim;
    for (uint f = thread_id; f < head.dim; f += block_size.x) {
        float sum[SUM_HEADS];
#pragma unroll
        for (uint h = 0; h < SUM_HEADS; h++) sum[h] = 0.0f;
        for (uint j = 0; j < row.width; j++) {
            int index = row.indices[j];
            if (index == NO_INDEX) continue;
            float v = widen(row.kv[ulong(index) * head.dim + f]);
#pragma unroll
            for (uint h = 0; h < SUM_HEADS; h++)
                if (h < heads) sum[h] = fma(w[ulong(h) * head.width + j], v, sum[h]);
        }
#pragma unroll
        for (uint h = 0; h < SUM_HEADS; h++)
            if (h < heads) out[h * head.dim + f] = rounded(sum[h] / w[ulong(h) * head.width + head.width - 1]);
    }
}

// Grid (32 features and 64 heads each, rows), in matrices: every selected cache row is read once for 64 heads.
[[kernel, max_total_threads_per_threadgroup(256)]] void attention_values_fast(ARGUMENTS) {
    threadgroup float tile[TILE_FLOATS];
    threadgroup long offset[TILE];
    uint r = block.y;
    device const Row& row = row_of(head, r);
    if (!row.active || found(scratch, r).attended <= 0) return;
    uint parts = (head.heads + TILE_HEADS - 1) / TILE_HEADS;
    uint f0 = (block.x / parts) * TILE, h0 = (block.x % parts) * TILE_HEADS;
    uint heads = min(head.heads - h0, TILE_HEADS);
    device const float* w = logits(head, scratch, uint2(r, h0));
    Accumulators sums;
    clear_sums(sums);
    for (uint first = 0; first < row.width; first += TILE) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (thread_id < TILE) {
            int index = first + thread_id < row.width ? row.indices[first + thread_id] : NO_INDEX;
            offset[thread_id] = index != NO_INDEX ? long(index) * head.dim + f0 : -1;
        }
        for (uint i = thread_id; i < TILE_HEADS * TILE; i += TILE_THREADS) {
            uint h = i / TILE, k = i % TILE;
            bool there = h < heads && first + k < row.width;
            tile[h * PITCH + k] = there ? w[ulong(h) * head.width + first + k] : 0.0f;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = thread_id; i < TILE * TILE; i += TILE_THREADS) {
            uint k = i / TILE, f = i % TILE;
            tile[A_FLOATS + k * PITCH + f] = offset[k] >= 0 ? widen(row.kv[offset[k] + f]) : 0.0f;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if ((warp / 2) * 16 < heads) multiply_step(sums, tile, warp, false);
    }
    spread(sums, tile, warp);
    device ushort* out = head.out + (row.out * head.heads + h0) * head.dim + f0;
    for (uint i = thread_id; i < heads * TILE; i += TILE_THREADS) {
        uint h = i / TILE, f = i % TILE;
        out[h * head.dim + f] = rounded(tile[h * PITCH + f] / w[ulong(h) * head.width + head.width - 1]);
    }
}

// One simdgroup a row and head: zeros where nothing was attended to or something was not finite, and says what.
[[kernel, max_total_threads_per_threadgroup(128)]] void attention_finish(ARGUMENTS) {
    uint r = block.y, h = block.x * 4 + warp;
    device const Row& row = row_of(head, r);
    if (!row.active || h >= head.heads) return;
    device ushort* out = head.out + (row.out * head.heads + h) * head.dim;
    uint faults = 0;
    bool zero = found(scratch, r).attended <= 0;
    if (!zero) {
        bool bad_cache = false;
        if (found(scratch, r).suspect) {
            for (uint j = 0; j < row.width; j++) {
                if (row.indices[j] == NO_INDEX) continue;
                device const ushort* kv = row.kv + ulong(row.indices[j]) * head.dim;
                for (uint f = lane; f < head.dim; f += LANES) bad_cache = bad_cache || !is_finite_bits(kv[f]);
            }
        }
        bool bad = false;
        for (uint f = lane; f < head.dim; f += LANES) bad = bad || !is_finite_bits(out[f]);
        bad_cache = simd_any(bad_cache);
        zero = simd_any(bad) || bad_cache;
        if (zero) {
            bool bad_query = false;
            device const ushort* q = head.q + (row.query * head.heads + h) * head.dim;
            for (uint f = lane; f < head.dim; f += LANES) bad_query = bad_query || !is_finite_bits(q[f]);
            if (simd_any(bad_query)) faults |= NONFINITE_QUERY;
            if (head.sinks && !is_finite(head.sinks[h])) faults |= NONFINITE_SINK;
            if (bad_cache) {
                faults |= NONFINITE_KV;
            } else if (faults == 0) {
                faults = OVERFLOW;
            }
        }
    }
    if (!zero) return;
    for (uint f = lane; f < head.dim; f += LANES) out[f] = 0;
    if (faults && lane == 0) add_status(head.status, r, faults);
}
