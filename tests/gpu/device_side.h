// DeviceSide: a GPU, real or software, as used by a program other than
// TensorFlow: a stream that computes, memory, copies from and to the host. Uses
// the functions of the runtime's own table.
//
// Depends only on the runtime: it is also compiled without a test framework
// (tests/run_gpu.sh). One thread.
#ifndef TF_HVD_TESTS_GPU_DEVICE_SIDE_H_
#define TF_HVD_TESTS_GPU_DEVICE_SIDE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "runtime/transport/gpu/cuda_api.h"
#include "runtime/transport/gpu/device.h"

namespace tf_hvd {

class DeviceSide {
 public:
  // `cuda` outlives it.
  static Status Open(const CudaApi* cuda, int ordinal,
                     std::unique_ptr<DeviceSide>* side);

  GpuDevice* device() const { return device_.get(); }
  CudaStream stream() const { return stream_; }

  // Allocates memory of the device, until Free or the end.
  Status Allocate(size_t bytes, char** memory);
  void Free(const char* memory);
  // Writes data like a step's kernels: returns while the memory still has stale
  // bytes. The stream first makes the copies set by LagBy, and then this one.
  Status Produce(char* memory, const char* bytes, size_t count);
  // Memory of the device to copy; on a GPU a few hundred MiB take a
  // millisecond.
  Status LagBy(size_t bytes);
  // These return when the copy is complete.
  Status Upload(char* memory, const char* bytes, size_t count);
  Status Download(const char* memory, char* bytes, size_t count);
  // Waits until the stream has done all previous work; an error after a minute.
  Status Finish();

 private:
  explicit DeviceSide(std::shared_ptr<GpuDevice> device)
      : device_(std::move(device)) {}

  const std::shared_ptr<GpuDevice> device_;
  CudaStream stream_ = nullptr;
  std::shared_ptr<char> pinned_;
  char* lag_ = nullptr;  // `lag_bytes_` bytes
  size_t lag_bytes_ = 0;
  std::vector<std::shared_ptr<char>> memory_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_DEVICE_SIDE_H_
