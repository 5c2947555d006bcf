// The code of compute/device_kernels.cu.cc for GPUs, as the wheel carries it.
#ifndef TF_HVD_COMPUTE_DEVICE_IMAGE_H_
#define TF_HVD_COMPUTE_DEVICE_IMAGE_H_

#include <cstddef>
#include <cstdint>

namespace tf_hvd {

// One architecture's.
struct DeviceCode {
  int major;  // compute capability
  int minor;
  bool is_ptx;  // compiled by the driver, for later architectures too
  const void* image;
  size_t bytes;
};

// All that there is; none in a build without NVRTC.
const DeviceCode* DeviceCodes(size_t* count);

// The machine code for the compute capability, or of the same major number and
// a lower minor one; else PTX that is not newer. Null if there is none.
const DeviceCode* ChooseCode(const DeviceCode* codes, size_t count, int major,
                             int minor);

// Of all that there is, for cuModuleLoadData. Null if there is none.
const void* DeviceImage(int major, int minor);

}  // namespace tf_hvd

#endif  // TF_HVD_COMPUTE_DEVICE_IMAGE_H_
