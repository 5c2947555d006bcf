// The kernels of device_moves.h.
#include "compute/device_moves.h"

#define TF_HVD_DEFINE_MOVE(name, Way)                                          \
  extern "C" __global__ void name(tf_hvd::MoveArguments arguments) {           \
    tf_hvd::MoveTile<tf_hvd::Way>(arguments, static_cast<int64_t>(blockIdx.x), \
                                  static_cast<int>(threadIdx.x),               \
                                  static_cast<int>(blockDim.x));               \
  }

TF_HVD_DEVICE_MOVES(TF_HVD_DEFINE_MOVE)
