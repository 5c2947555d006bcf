// The kernels that sum, compute/device_sums.h, on a GPU against the same
// functions on the host, bit for bit. Of device_check.
#ifndef TF_HVD_TESTS_GPU_DEVICE_SUMS_CHECK_H_
#define TF_HVD_TESTS_GPU_DEVICE_SUMS_CHECK_H_

#include "base/status.h"
#include "tests/gpu/device_side.h"

namespace tf_hvd {

// An error says what differs. `launches`: how many there were.
Status CheckSums(DeviceSide* side, int* launches);

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_DEVICE_SUMS_CHECK_H_
