// GPU code of compute/device_kernels.cu.cc, as included in the wheel.
#ifndef TF_HVD_COMPUTE_DEVICE_IMAGE_H_
#define TF_HVD_COMPUTE_DEVICE_IMAGE_H_

#include <cstddef>
#include <cstdint>

namespace tf_hvd {

// The code for one architecture.
struct DeviceCode {
  int major;  // compute capability
  int minor;
  bool is_ptx;  // compiled by the driver; also runs on later architectures
  const void* image;
  size_t bytes;
};

// All code images; empty in a build without NVRTC.
const DeviceCode* DeviceCodes(size_t* count);

// The machine code for the compute capability, or for a lower minor number of
// the same major number. Otherwise PTX that is not newer. Null if neither
// exists.
const DeviceCode* ChooseCode(const DeviceCode* codes, size_t count, int major,
                             int minor);

// Chooses from all code images, for cuModuleLoadData. Null if none fits.
const void* DeviceImage(int major, int minor);

}  // namespace tf_hvd

#endif  // TF_HVD_COMPUTE_DEVICE_IMAGE_H_
