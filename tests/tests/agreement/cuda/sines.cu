// Functions of the device's mathematical library, whose arguments are reduced with all digits of 2 / pi where they are
// large: any f32 and f64.
#include "program.h"

extern "C" __global__ void program(Parameters p) {
    const float x = __uint_as_float((unsigned)input(p, 0));
    const double y = __longlong_as_double((long long)input(p, 1));
    const float z = __uint_as_float((unsigned)input(p, 2));
    output(p, 0) = (unsigned long long)__float_as_uint(sinf(x)) << 32 | __float_as_uint(cosf(x));
    output(p, 1) = (unsigned long long)__double_as_longlong(sin(y));
    output(p, 2) = (unsigned long long)__double_as_longlong(exp(cos(y)) + log1p(fabs(y)));
    output(p, 3) = (unsigned long long)__float_as_uint(atan2f(x, z)) << 32 | __float_as_uint(sinpif(z));
}
