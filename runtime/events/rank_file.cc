#include "runtime/events/rank_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

namespace tf_hvd {

std::string BeforeSuffix(const std::string& path, const std::string& more) {
  const size_t name = path.rfind('/') + 1;  // npos + 1: 0
  const size_t dot = path.rfind('.');
  const bool suffix = dot != std::string::npos && dot > name;
  std::string result = path;
  return result.insert(suffix ? dot : path.size(), more);
}

std::string RankFile(const std::string& path, int rank) {
  if (rank == 0) return path;
  return BeforeSuffix(path, ".rank-" + std::to_string(rank));
}

int WriteAll(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = write(file, bytes.data(), bytes.size());
    if (wrote < 0 && errno != EINTR) return errno;
    bytes.remove_prefix(static_cast<size_t>(std::max<ssize_t>(wrote, 0)));
  }
  return 0;
}

}  // namespace tf_hvd
