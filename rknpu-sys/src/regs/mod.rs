//! Registers of the NPU.
