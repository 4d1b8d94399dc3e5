"""Steps of a dense policy on a CPU, computed by our own kernels, which the first start compiles for the processor."""
