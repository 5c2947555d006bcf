// Compares the kernels of compute/device_sums.h on a GPU with the same
// functions on the host, bit for bit. Part of device_check.
#ifndef TF_HVD_TESTS_GPU_DEVICE_SUMS_CHECK_H_
#define TF_HVD_TESTS_GPU_DEVICE_SUMS_CHECK_H_

#include "base/status.h"
#include "tests/gpu/device_side.h"

namespace tf_hvd {

// The error describes the difference. `launches`: number of launches.
Status CheckSums(DeviceSide* side, int* launches);

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_DEVICE_SUMS_CHECK_H_
