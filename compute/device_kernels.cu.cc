// All kernels, as one image. Compiled by NVRTC for the wheel, and by nvcc
// (--config=cuda) for additional warnings.
#include "compute/device_moves.cu.cc"
#include "compute/device_sums.cu.cc"
