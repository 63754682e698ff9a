// printf: conversions, flags, widths, and what it returns.
#include "program.h"
#include <cmath>
#include <cstdio>

extern "C" __global__ void program(Parameters p) {
    const unsigned thread = row();
    if (thread == 0) {
        int count = printf("[begin]\n");
        count += printf("%d %5d %-5d| %05d %+d % d %u\n", -7, 42, 42, 42, 42, 42, 3000000000u);
        count += printf("%x %X %#x %o %#o %08x\n", 48879, 48879, 48879, 8, 8, 48879);
        count += printf("%lld %llu %llx %ld\n", -5000000000ll, 18000000000000000000ull, 0x123456789abcdefull, -3l);
        count += printf("%f %.3f %10.4f %-10.2f| %e %.2e %E\n", 3.25, 3.14159, 2.5, 2.5, 12345.678, 0.00012, 1e300);
        count += printf("%g %g %g %.3g %#g %G\n", 0.0001, 1e-5, 1e6, 123456.0, 1.0, 1e20);
        count += printf("%f %f %f %g\n", INFINITY, -INFINITY, -0.0, 5e-324);
        count += printf("%c%c %s [%8s] [%-8s] [%.2s] %%\n", 'o', 'k', "text", "right", "left", "cut");
        count += printf("%hd %hu %p\n", 70000, 70000, (void *)0x1234);
        output(p, 0) = count;
    }
    __syncwarp();
    if (thread < 64)
        output(p, 1) = printf("thread %u of %u: %.1f\n", thread, blockDim.x, 0.5 * thread);
    __syncthreads();
    if (thread == 0)
        printf("[end]\n");
}
