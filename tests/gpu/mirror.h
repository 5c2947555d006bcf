// Mirror: memory on the host and a copy of it on a device.
#ifndef TF_HVD_TESTS_GPU_MIRROR_H_
#define TF_HVD_TESTS_GPU_MIRROR_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "tests/gpu/device_side.h"

namespace tf_hvd {

class Mirror {
 public:
  static constexpr size_t kAlign = 256;

  explicit Mirror(size_t bytes) : memory_(bytes + kAlign), bytes_(bytes) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    host_ = memory_.data() + (kAlign - address % kAlign) % kAlign;
  }

  Status Open(DeviceSide* side) {
    TF_HVD_RETURN_IF_ERROR(side->Allocate(bytes_, &device_));
    return side->Upload(device_, host_, bytes_);
  }

  char* host() { return host_; }
  char* device() { return device_; }
  size_t bytes() const { return bytes_; }

 private:
  std::vector<char> memory_;
  const size_t bytes_;
  char* host_ = nullptr;
  char* device_ = nullptr;
};

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_MIRROR_H_
