// DeviceSide: a GPU, real or of software, as a program that is not TensorFlow
// uses it: a stream that computes, memory, copies from and to the host. By the
// functions of the runtime's own table.
//
// Needs nothing but the runtime: it is compiled where there is no test
// framework either (tests/run_gpu.sh). One thread.
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

  // Memory of the device, until Free or the end.
  Status Allocate(size_t bytes, char** memory);
  void Free(const char* memory);
  // As a step's kernels make it: returns when nothing but stale bytes are
  // there. The stream copies what LagBy says first, and then these.
  Status Produce(char* memory, const char* bytes, size_t count);
  // Of memory of the device; on a card a few hundred MiB are a millisecond.
  Status LagBy(size_t bytes);
  // Return when it has been done.
  Status Upload(char* memory, const char* bytes, size_t count);
  Status Download(const char* memory, char* bytes, size_t count);
  // When the stream has done what it was given; an error after a minute.
  Status Finish();

 private:
  explicit DeviceSide(std::shared_ptr<GpuDevice> device)
      : device_(std::move(device)) {}

  const std::shared_ptr<GpuDevice> device_;
  CudaStream stream_ = nullptr;
  std::shared_ptr<char> pinned_;
  char* lag_ = nullptr;  // of so many bytes
  size_t lag_bytes_ = 0;
  std::vector<std::shared_ptr<char>> memory_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_DEVICE_SIDE_H_
