#include "runtime/transport/loopback/edge.h"

#include <algorithm>

namespace tf_hvd {

size_t ByteRing::Write(const char* data, size_t size) {
  const MutexLock lock(&mutex_);
  const size_t taken = std::min(size, ring_.size() - used_);
  for (size_t done = 0; done < taken;) {
    const size_t at = (begin_ + used_) % ring_.size();
    const size_t part = std::min(taken - done, ring_.size() - at);
    std::copy_n(data + done, part, ring_.data() + at);
    used_ += part;
    done += part;
  }
  return taken;
}

void ByteRing::Publish() {
  const MutexLock lock(&mutex_);
  published_ = used_;
}

size_t ByteRing::Read(char* data, size_t size) {
  const MutexLock lock(&mutex_);
  const size_t given = std::min(size, published_);
  for (size_t done = 0; done < given;) {
    const size_t part = std::min(given - done, ring_.size() - begin_);
    std::copy_n(ring_.data() + begin_, part, data + done);
    begin_ = (begin_ + part) % ring_.size();
    done += part;
  }
  used_ -= given;
  published_ -= given;
  return given;
}

bool ByteRing::Readable() const {
  const MutexLock lock(&mutex_);
  return published_ > 0;
}

}  // namespace tf_hvd
