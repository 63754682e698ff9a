// Kernels around the primitives of CUB, for twins.py: each takes `in` and `out` of 4 numbers a thread, or of one.
#include <cub/block/block_shuffle.cuh>
#include <cub/cub.cuh>

constexpr int threads = 128;
constexpr int items = 4;

#define KERNEL(name) extern "C" __global__ void __launch_bounds__(threads) name(const int* in, int* out)
#define LOAD                                                                                          \
    int mine[items];                                                                                  \
    const int base = (blockIdx.x * threads + threadIdx.x) * items;                                    \
    for (int i = 0; i < items; ++i) mine[i] = in[base + i]
#define STORE \
    for (int i = 0; i < items; ++i) out[base + i] = mine[i]
#define ONE blockIdx.x * threads + threadIdx.x

#define REDUCE(name, algorithm)                                            \
    KERNEL(name) {                                                         \
        using Reduce = cub::BlockReduce<int, threads, cub::algorithm>;     \
        __shared__ typename Reduce::TempStorage room;                      \
        const int sum = Reduce(room).Sum(in[ONE]);                         \
        if (threadIdx.x == 0) out[blockIdx.x] = sum;                       \
    }
REDUCE(reduce_raking, BLOCK_REDUCE_RAKING)
REDUCE(reduce_raking_commutative, BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY)
REDUCE(reduce_warps, BLOCK_REDUCE_WARP_REDUCTIONS)

#define SCAN(name, algorithm)                                          \
    KERNEL(name) {                                                     \
        using Scan = cub::BlockScan<int, threads, cub::algorithm>;     \
        __shared__ typename Scan::TempStorage room;                    \
        LOAD;                                                          \
        Scan(room).ExclusiveSum(mine, mine);                           \
        STORE;                                                         \
    }
SCAN(scan_raking, BLOCK_SCAN_RAKING)
SCAN(scan_raking_memoize, BLOCK_SCAN_RAKING_MEMOIZE)
SCAN(scan_warps, BLOCK_SCAN_WARP_SCANS)

KERNEL(radix_sort) {
    using Sort = cub::BlockRadixSort<int, threads, items>;
    __shared__ typename Sort::TempStorage room;
    LOAD;
    Sort(room).Sort(mine);
    STORE;
}

KERNEL(radix_sort_striped) {
    using Sort = cub::BlockRadixSort<int, threads, items>;
    __shared__ typename Sort::TempStorage room;
    LOAD;
    Sort(room).SortDescendingBlockedToStriped(mine);
    STORE;
}

struct Less {
    __device__ bool operator()(int a, int b) const { return a < b; }
};

KERNEL(merge_sort) {
    using Sort = cub::BlockMergeSort<int, threads, items>;
    __shared__ typename Sort::TempStorage room;
    LOAD;
    Sort(room).Sort(mine, Less());
    STORE;
}

#define LOAD_STORE(name, load, store)                                          \
    KERNEL(name) {                                                             \
        using Load = cub::BlockLoad<int, threads, items, cub::load>;           \
        using Store = cub::BlockStore<int, threads, items, cub::store>;        \
        __shared__ union {                                                     \
            typename Load::TempStorage load;                                   \
            typename Store::TempStorage store;                                 \
        } room;                                                                \
        int mine[items];                                                       \
        const int base = blockIdx.x * threads * items;                         \
        Load(room.load).Load(in + base, mine);                                 \
        for (int& one : mine) one += threadIdx.x;                              \
        __syncthreads();                                                       \
        Store(room.store).Store(out + base, mine);                             \
    }
LOAD_STORE(load_vectorized, BLOCK_LOAD_VECTORIZE, BLOCK_STORE_VECTORIZE)
LOAD_STORE(load_transposed, BLOCK_LOAD_TRANSPOSE, BLOCK_STORE_TRANSPOSE)
LOAD_STORE(load_warps_transposed, BLOCK_LOAD_WARP_TRANSPOSE, BLOCK_STORE_WARP_TRANSPOSE)
LOAD_STORE(load_striped, BLOCK_LOAD_STRIPED, BLOCK_STORE_STRIPED)

KERNEL(exchange) {
    using Exchange = cub::BlockExchange<int, threads, items>;
    __shared__ typename Exchange::TempStorage room;
    LOAD;
    Exchange(room).BlockedToStriped(mine, mine);
    STORE;
}

#define HISTOGRAM(name, algorithm)                                                           \
    KERNEL(name) {                                                                           \
        using Histogram = cub::BlockHistogram<int, threads, items, 64, cub::algorithm>;      \
        __shared__ typename Histogram::TempStorage room;                                     \
        __shared__ int counts[64];                                                           \
        LOAD;                                                                                \
        for (int& one : mine) one &= 63;                                                     \
        Histogram(room).Histogram(mine, counts);                                             \
        __syncthreads();                                                                     \
        if (threadIdx.x < 64) out[blockIdx.x * 64 + threadIdx.x] = counts[threadIdx.x];      \
    }
HISTOGRAM(histogram_atomic, BLOCK_HISTO_ATOMIC)
HISTOGRAM(histogram_sort, BLOCK_HISTO_SORT)

struct Minus {
    __device__ int operator()(int a, int b) const { return a - b; }
};

KERNEL(adjacent_difference) {
    using Difference = cub::BlockAdjacentDifference<int, threads>;
    __shared__ typename Difference::TempStorage room;
    LOAD;
    Difference(room).SubtractLeft(mine, mine, Minus());
    STORE;
}

KERNEL(discontinuity) {
    using Discontinuity = cub::BlockDiscontinuity<int, threads>;
    __shared__ typename Discontinuity::TempStorage room;
    LOAD;
    int heads[items];
    Discontinuity(room).FlagHeads(heads, mine, cuda::std::not_equal_to<>{});
    for (int i = 0; i < items; ++i) mine[i] = heads[i];
    STORE;
}

KERNEL(shuffle) {
    using Shuffle = cub::BlockShuffle<int, threads>;
    __shared__ typename Shuffle::TempStorage room;
    LOAD;
    Shuffle(room).Up(mine, mine);
    if (threadIdx.x == 0) mine[0] = 0;
    STORE;
}

KERNEL(warp_reduce) {
    using Reduce = cub::WarpReduce<int>;
    __shared__ typename Reduce::TempStorage room[threads / 32];
    const int sum = Reduce(room[threadIdx.x / 32]).Sum(in[ONE]);
    if (threadIdx.x % 32 == 0) out[(ONE) / 32] = sum;
}

KERNEL(warp_reduce_of_16) {
    using Reduce = cub::WarpReduce<int, 16>;
    __shared__ typename Reduce::TempStorage room[threads / 16];
    const int sum = Reduce(room[threadIdx.x / 16]).Sum(in[ONE]);
    if (threadIdx.x % 16 == 0) out[(ONE) / 16] = sum;
}

KERNEL(warp_scan) {
    using Scan = cub::WarpScan<int>;
    __shared__ typename Scan::TempStorage room[threads / 32];
    int sum;
    Scan(room[threadIdx.x / 32]).InclusiveSum(in[ONE], sum);
    out[ONE] = sum;
}

KERNEL(warp_merge_sort) {
    using Sort = cub::WarpMergeSort<int, items, 32>;
    __shared__ typename Sort::TempStorage room[threads / 32];
    LOAD;
    Sort(room[threadIdx.x / 32]).Sort(mine, Less());
    STORE;
}

KERNEL(warp_exchange) {
    using Exchange = cub::WarpExchange<int, items>;
    __shared__ typename Exchange::TempStorage room[threads / 32];
    LOAD;
    Exchange(room[threadIdx.x / 32]).StripedToBlocked(mine, mine);
    STORE;
}
