#include "runtime/events/rank_file.h"

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

}  // namespace tf_hvd
