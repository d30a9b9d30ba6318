//! Which weights are in the NPU's window, and when: plan, residency, prefetch, experts
