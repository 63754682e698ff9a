// dv = p^T do of one head, in two warps: a lane is a key, a warp takes 16 of the 32 queries of a tile.
// p [queries, keys] and do, dv [rows, 4] are f32. Written for reading, not for speed.
struct Shared {
    float4 d_o[32];          // a tile of do, filled by one bulk copy
    union {
        float p[32][32];     // a tile of p
        float4 sums[32];     // what the second warp hands to the first one at the end: the same bytes
    };
    uint64_t arrived;
};

__global__ void dv_fixed(const float* p, const float4* d_o, float4* dv, int queries, int keys) {
    extern __shared__ Shared shared;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float4 sum = {0, 0, 0, 0};
    if (threadIdx.x == 0) mbarrier_init(&shared.arrived, 1);
    __syncthreads();
    for (int tile = 0; tile < (queries + 31) / 32; ++tile) {
        int rows = min(32, queries - tile * 32);
        if (tile > 0) __syncthreads();  // all have read the last tile
        if (threadIdx.x == 0) {
            fence_proxy_async();
            mbarrier_expect(&shared.arrived, rows * 16);
            bulk_copy(shared.d_o, d_o + tile * 32, rows * 16, &shared.arrived);
        }
        if (threadIdx.x < 32 && threadIdx.x >= rows) shared.d_o[threadIdx.x] = {0, 0, 0, 0};
        for (int i = 0; i < 16; ++i) {
            int row = warp * 16 + i;
            bool is_inside = row < rows && lane < keys;
            shared.p[row][lane] = is_inside ? p[(tile * 32 + row) * keys + lane] : 0;
        }
        mbarrier_wait(&shared.arrived, tile % 2);
        __syncthreads();
        for (int i = 0; i < 16; ++i) {
            int row = warp * 16 + i;
            float4 gradient = shared.d_o[row];
            float weight = shared.p[row][lane];
            sum.x += weight * gradient.x;
            sum.y += weight * gradient.y;
            sum.z += weight * gradient.z;
            sum.w += weight * gradient.w;
        }
    }
    __syncthreads();                                           // all have read p
    if (warp == 1) shared.sums[lane] = sum;
    __syncthreads();
    if (warp == 0 && lane < keys) {
        float4 other = shared.sums[lane];
        sum = {sum.x + other.x, sum.y + other.y, sum.z + other.z, sum.w + other.w};
        dv[lane] = sum;
    }
}
