"""Steps of a dense policy on a CPU, by kernels of our own that are compiled for the processor at the first start."""
