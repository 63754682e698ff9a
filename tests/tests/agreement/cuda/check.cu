// assert: one thread's condition does not hold.
#undef NDEBUG
#include "program.h"
#include <cassert>

extern "C" __global__ void program(Parameters p) {
    const unsigned long long value = row() == 37 ? 7 : 0;
    output(p, 0) = 1;
    assert(value < 5 && "small");
    output(p, 1) = 1;
}
