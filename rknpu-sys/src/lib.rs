//! The user-space interface of the rknpu kernel driver and the register map of the RK3588 NPU
