#include "tests/gpu/device_side.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

namespace tf_hvd {
namespace {

constexpr size_t kPinnedBytes = size_t{16} << 20;
constexpr std::chrono::seconds kLimit{60};
constexpr int kLagCopies = 8;
// A byte that does not occur in elements of any type.
constexpr char kStale = '\x5a';

}  // namespace

Status DeviceSide::Open(const CudaApi* cuda, int ordinal,
                        std::unique_ptr<DeviceSide>* side) {
  std::shared_ptr<GpuDevice> device;
  TF_HVD_RETURN_IF_ERROR(GpuDevice::Open(cuda, ordinal, &device));
  side->reset(new DeviceSide(device));
  TF_HVD_RETURN_IF_ERROR(device->NewStream(&(*side)->stream_));
  return device->Allocate(MemoryKind::kPinned, kPinnedBytes, &(*side)->pinned_);
}

Status DeviceSide::Allocate(size_t bytes, char** memory) {
  std::shared_ptr<char> made;
  TF_HVD_RETURN_IF_ERROR(device_->Allocate(MemoryKind::kDevice,
                                           std::max<size_t>(bytes, 1), &made));
  *memory = made.get();
  memory_.push_back(std::move(made));
  return Status::Ok();
}

void DeviceSide::Free(const char* memory) {
  memory_.erase(
      std::remove_if(memory_.begin(), memory_.end(),
                     [&](const auto& one) { return one.get() == memory; }),
      memory_.end());
}

Status DeviceSide::Finish() {
  std::shared_ptr<GpuEvent> event;
  TF_HVD_RETURN_IF_ERROR(device_->Record(stream_, &event));
  const auto end = std::chrono::steady_clock::now() + kLimit;
  for (bool fired = false; !fired;) {
    TF_HVD_RETURN_IF_ERROR(device_->HasFired(*event, &fired));
    if (std::chrono::steady_clock::now() > end) {
      return Aborted("the stream that computes hangs");
    }
  }
  return Status::Ok();
}

Status DeviceSide::LagBy(size_t bytes) {
  lag_bytes_ = bytes / 2;
  return Allocate(2 * lag_bytes_, &lag_);
}

Status DeviceSide::Produce(char* memory, const char* bytes, size_t count) {
  const std::string stale(count, kStale);
  TF_HVD_RETURN_IF_ERROR(Upload(memory, stale.data(), count));
  char* made = nullptr;
  TF_HVD_RETURN_IF_ERROR(Allocate(count, &made));
  TF_HVD_RETURN_IF_ERROR(Upload(made, bytes, count));
  for (int i = 0; i < kLagCopies && lag_bytes_ > 0; ++i) {
    TF_HVD_RETURN_IF_ERROR(
        device_->Copy(stream_, lag_ + lag_bytes_, lag_, lag_bytes_));
  }
  return count == 0 ? Status::Ok()
                    : device_->Copy(stream_, memory, made, count);
}

Status DeviceSide::Upload(char* memory, const char* bytes, size_t count) {
  for (size_t at = 0; at < count; at += kPinnedBytes) {
    const size_t part = std::min(kPinnedBytes, count - at);
    std::memcpy(pinned_.get(), bytes + at, part);
    TF_HVD_RETURN_IF_ERROR(
        device_->Copy(stream_, memory + at, pinned_.get(), part));
    TF_HVD_RETURN_IF_ERROR(Finish());
  }
  return Status::Ok();
}

Status DeviceSide::Download(const char* memory, char* bytes, size_t count) {
  for (size_t at = 0; at < count; at += kPinnedBytes) {
    const size_t part = std::min(kPinnedBytes, count - at);
    TF_HVD_RETURN_IF_ERROR(
        device_->Copy(stream_, pinned_.get(), memory + at, part));
    TF_HVD_RETURN_IF_ERROR(Finish());
    std::memcpy(bytes + at, pinned_.get(), part);
  }
  return Status::Ok();
}

}  // namespace tf_hvd
