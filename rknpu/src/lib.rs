//! Safe access to the NPU of the RK3588: domains, buffers, cores and matmul
