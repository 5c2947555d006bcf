// All kernels, as one image. Compiled by NVRTC for what the wheel carries, and
// by nvcc (--config=cuda) to hear its warnings too.
#include "kernels/device_adasum.cu.cc"
#include "kernels/device_moves.cu.cc"
#include "kernels/device_sums.cu.cc"
