// What the programs in this folder get: 1024 rows of four columns of 8 bytes, and as much room for results behind
// them. `nvcc -ptx -arch=compute_80 NAME.cu` makes NAME.ptx, whose
// version is lowered to 8.0, which drivers know that are older than the compiler.
#pragma once

constexpr unsigned ROWS = 1024;

struct Parameters {
    char map[128];
    unsigned long long *data;
    char unused[56];
};

__device__ unsigned row() { return blockIdx.x * blockDim.x + threadIdx.x; }

// Column `column` of this thread's row.
__device__ unsigned long long input(const Parameters &p, unsigned column) { return p.data[column * ROWS + row()]; }

__device__ unsigned long long &output(const Parameters &p, unsigned column) {
    return p.data[(4 + column) * ROWS + row()];
}
