#include "runtime/transport/p2p/schedule.h"

#include <cstring>

namespace tf_hvd {

void Schedule::Copy(void* to, const void* from, size_t bytes) {
  constexpr int64_t kBlock = 256 * 1024;
  if (to == from) return;
  Do(static_cast<int64_t>(bytes), kBlock,
     [to = static_cast<char*>(to), from = static_cast<const char*>(from)](
         int64_t begin, int64_t count) {
       std::memcpy(to + begin, from + begin, static_cast<size_t>(count));
     });
}

}  // namespace tf_hvd
