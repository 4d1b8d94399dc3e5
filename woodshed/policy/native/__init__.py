"""The compiler of native kernels, and fused operators for training on a CPU."""
