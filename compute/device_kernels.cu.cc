// All kernels, as one image. Compiled by NVRTC for what the wheel carries, and
// by nvcc (--config=cuda) to hear its warnings too.
#include "compute/device_moves.cu.cc"
#include "compute/device_sums.cu.cc"
