// Arithmetic of 128-bit integers: carries, borrows, products, quotients.
#include "program.h"

extern "C" __global__ void program(Parameters p) {
    const unsigned __int128 a = (unsigned __int128)input(p, 0) << 64 | input(p, 1);
    const unsigned __int128 b = (unsigned __int128)input(p, 2) << 64 | input(p, 3);
    // Divisors of every length.
    const unsigned __int128 d = (b >> (row() % 127)) | 1;
    const __int128 c = (__int128)a;
    const unsigned __int128 unsigned_part = a * b + (a / d) - (a % d ^ (a << (row() % 128)));
    const __int128 signed_part = c / ((__int128)d >> 1 | 1) - (c % 1000003) + (c >> (row() % 128));
    output(p, 0) = (unsigned long long)unsigned_part;
    output(p, 1) = (unsigned long long)(unsigned_part >> 64);
    output(p, 2) = (unsigned long long)signed_part;
    output(p, 3) = (unsigned long long)((unsigned __int128)signed_part >> 64);
}
