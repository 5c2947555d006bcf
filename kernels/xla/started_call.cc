#include "kernels/xla/started_call.h"

#include <cstring>

#include "base/log.h"

namespace tf_hvd {
namespace {

// The alignment for vector loads.
constexpr size_t kAlignment = 64;

size_t Aligned(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

void StartedCall::UseOn(CudaStream stream, std::shared_ptr<GpuEvent> ready,
                        std::string who, std::string what) {
  stream_ = stream;
  who_ = std::move(who);
  what_ = std::move(what);
  const MutexLock lock(&mutex_);
  ready_ = std::move(ready);
}

void* StartedCall::Where(void* piece) {
  const MutexLock lock(&mutex_);
  return Moved(piece);
}

std::shared_ptr<GpuEvent> StartedCall::Ready() {
  const MutexLock lock(&mutex_);
  return ready_;
}

void StartedCall::Begins(Entry* entry) {
  const MutexLock lock(&mutex_);
  begun_ = true;
  if (copy_ == nullptr) return;
  for (Span& span : entry->tensors) {
    span.input = Moved(span.input);
    span.output = Moved(span.output);
  }
  entry->memory.ready = ready_;
}

// From here on the next call of the same name may come: this one needs nothing
// more from this rank.
void StartedCall::Enqueued(std::shared_ptr<GpuEvent> event) {
  caller_->GiveUp();
  const MutexLock lock(&mutex_);
  enqueued_ = std::move(event);
  changed_.notify_all();
}

void StartedCall::Complete(const Status& status) {
  CompiledCalls::Ended later;
  {
    const MutexLock lock(&mutex_);
    if (handed_over_ && !status.ok()) {
      WriteLog(LogLevel::kError, who_,
               "the step that called " + what_ +
                   " continued with undefined values: " + status.message());
    }
    if (told_) return;
    status_ = status;
    told_ = true;
    changed_.notify_all();
    later = std::exchange(later_, nullptr);
  }
  if (later != nullptr) later(status);
}

void StartedCall::Release() {
  const MutexLock lock(&mutex_);
  released_ = true;
  copy_.reset();
  changed_.notify_all();
}

std::optional<Status> StartedCall::Await(CompiledCalls::Ended later) {
  const MutexLock lock(&mutex_);
  if (told_) return status_;
  later_ = std::move(later);
  return std::nullopt;
}

Status StartedCall::AwaitOnDevice(std::shared_ptr<GpuEvent>* event) {
  MutexLock lock(&mutex_);
  changed_.wait(lock.native(), [&]() REQUIRES(mutex_) {
    return told_ || enqueued_ != nullptr;
  });
  if (told_) return status_;
  handed_over_ = true;
  *event = enqueued_;
  return Status::Ok();
}

void StartedCall::Leave(const Status& status, Deadline deadline) {
  {
    MutexLock lock(&mutex_);
    // A piece that cannot be copied is waited for, as if the call had begun.
    if (!begun_ && !released_ && CopyAway().ok()) {
      caller_->GiveUp();
    } else {
      if (!left_by_.has_value()) left_by_ = deadline;
      changed_.wait_until(lock.native(), *left_by_, [&]() REQUIRES(mutex_) {
        return released_ || enqueued_ != nullptr;
      });
      if (!released_ && enqueued_ != nullptr) {
        static_cast<void>(enqueued_->device()->Wait(stream_, *enqueued_));
      }
    }
  }
  Complete(status);
}

Status StartedCall::CopyAway() {
  size_t bytes = 0;
  for (const Piece& piece : pieces_) bytes += Aligned(piece.bytes);
  std::shared_ptr<GpuDevice> device;
  std::shared_ptr<char> copy;
  if (stream_ == nullptr) {
    copy = std::shared_ptr<char>(
        static_cast<char*>(::operator new(bytes, std::align_val_t(kAlignment))),
        [](char* memory) {
          ::operator delete(memory, std::align_val_t(kAlignment));
        });
  } else {
    device = ready_->device();
    TF_HVD_RETURN_IF_ERROR(device->Allocate(MemoryKind::kDevice, bytes, &copy));
  }
  char* to = copy.get();
  for (const Piece& piece : pieces_) {
    if (piece.is_read && device != nullptr) {
      TF_HVD_RETURN_IF_ERROR(
          device->Copy(stream_, to, piece.data, piece.bytes));
    } else if (piece.is_read && piece.bytes > 0) {
      std::memcpy(to, piece.data, piece.bytes);
    }
    to += Aligned(piece.bytes);
  }
  if (device != nullptr) {
    TF_HVD_RETURN_IF_ERROR(device->Record(stream_, &ready_));
  }
  copy_ = std::move(copy);
  return Status::Ok();
}

void* StartedCall::Moved(const void* piece) const {
  char* to = copy_.get();
  for (const Piece& one : pieces_) {
    if (to == nullptr) break;
    if (one.data == piece) return to;
    to += Aligned(one.bytes);
  }
  return const_cast<void*>(piece);
}

}  // namespace tf_hvd
