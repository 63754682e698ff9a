// Kernels of CUB for a whole device, of which twins.py runs those of one launch.
#include <cub/device/device_reduce.cuh>
#include <cub/device/device_scan.cuh>

void instantiate(void* room, size_t& bytes, const int* in, int* out, int count) {
    cub::DeviceReduce::Sum(room, bytes, in, out, count);
    cub::DeviceScan::ExclusiveSum(room, bytes, in, out, count);
}
