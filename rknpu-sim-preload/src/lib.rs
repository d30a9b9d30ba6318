//! A preloadable library that puts the simulated NPU under unmodified programs
