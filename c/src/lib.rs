//! `libfinite_attention.so`: the functions of `finite_attention::c_api`, which
//! `host/include/finite_attention.h` declares, and nothing else.

// The functions have names for the linker; that the crate is named keeps them.
extern crate finite_attention as _;
