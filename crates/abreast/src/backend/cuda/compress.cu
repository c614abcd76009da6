enum Kind { PLAIN, RING, SHIFTED };

template <Kind KIND>
static __device__ __forceinline__ void compress(const Row* table, u32 r) {
    // f32 [d], the norm; f32 [d], what is pooled; tiles.
    extern __shared__ float4 shared[];
    __shared__ Meeting meeting;
    __shared__ Pool pool;
    const Row row = table[r];
    const bool one = parts() == 1, first = part() == 0;
    const u32 ratio = KIND == PLAIN ? row.ratio : OVERLAP;
    const bool fetches = KIND == PLAIN && row.d > 0 && row.phase + row.tokens >= ratio;
    if (fetches) pool.begin();
    if (!one) meeting.begin();
    float* norm = (float*)shared;
    float* c = norm + row.d;
    if (!fetches) dependents_may_start();  // else when all is asked for
    u64 out = row.out;
    u32 faults = 0, blocks = 0;
    Place now = {row.start, row.phase, row.place};
    for (u32 token = 0; row.d > 0 && token < row.tokens; token++) {
        // What other threads kept of the tokens before is in the state.
        if (KIND == PLAIN && token > 0) __syncthreads();
        if (KIND != PLAIN) now.phase = now.position % OVERLAP;
        bool ends = now.phase + 1 == ratio;
        // Nobody still reads what was pooled of the block before.
        if (ends && blocks > 0) {
            if (one) __syncthreads();
            else meeting.again();
        }
        if (KIND == PLAIN) pool_plain(row, token, now, blocks, pool, norm, c, meeting);
        else pool_overlapped<KIND == RING>(row, token, now, ends, norm, c, meeting);
        if (ends) {
            if (one) __syncthreads();
            if (normalises()) {
                if (!one) meeting.wait(blocks, row.d * sizeof(float));
                wait_for_copies<0>();
                faults |= normalise(row, norm, c, out);
            }
            blocks++;
        } else if (row.every_token && first) {
            for (int f = threadIdx.x; f < row.d; f += blockDim.x) store(out + f * sizeof(bf16), (bf16)0);
        }
        if (ends || row.every_token) out += row.d * sizeof(bf16);
        now.position++;
        if (++now.phase == ratio) now.phase = 0;
        if (++now.row == row.state_rows) now.row = 0;
    }
    // A row without tokens has not waited yet.
    wait_for_predecessors();
    if (row.d > 0 && first && threadIdx.x == 0 && row.status) store(row.status, faults);
}

extern "C" __global__ void __launch_bounds__(PLAIN_THREADS, PLAIN_BLOCKS) compress_plain(const Row* table, char*, u32 blocks_x) {
    compress<PLAIN>(table, BLOCK_Y);
}

extern "C" __global__ void __launch_bounds__(OVERLAPPED_THREADS, 3) compress_ring(const Row* table, char*, u32 blocks_x) {
    compress<RING>(table, BLOCK_Y);
}

extern "C" __global__ void __launch_bounds__(OVERLAPPED_THREADS, 3) compress_shifted(const Row* table, char*, u32 blocks_x) {
    compress<SHIFTED>(table, BLOCK_Y);
}
