#include "runtime/agreement/message_stream.h"

#include "runtime/agreement/message.h"

namespace tf_hvd {
namespace {
constexpr size_t kReadBytes = 16 * 1024;
}  // namespace

bool MessageStream::Push() {
  if (!HasOutput()) return false;
  const size_t before = out_begin_;
  size_t taken = 0;
  do {
    taken = edge_->Write(out_.data() + out_begin_, out_.size() - out_begin_);
    out_begin_ += taken;
  } while (taken > 0 && HasOutput());
  if (!HasOutput()) {
    out_.clear();
    out_begin_ = 0;
    edge_->Flush();
    return true;
  }
  edge_->Flush();
  const bool moved = out_begin_ > before;
  if (out_begin_ > out_.size() / 2) {  // under steady load it never empties
    out_.erase(0, out_begin_);
    out_begin_ = 0;
  }
  return moved;
}

bool MessageStream::Pull(const std::function<void(std::string_view)>& receive) {
  char buffer[kReadBytes];
  bool moved = false;
  while (const size_t got = edge_->Read(buffer, sizeof(buffer))) {
    moved = true;
    in_.append(buffer, got);
    size_t begin = 0;
    for (;;) {
      const std::string_view rest = std::string_view(in_).substr(begin);
      const size_t size = MessageBytes(rest);
      if (size == 0 || size > rest.size()) break;
      receive(rest.substr(0, size));
      begin += size;
    }
    in_.erase(0, begin);
  }
  return moved;
}

}  // namespace tf_hvd
