#include "runtime/events/rank_file.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace tf_hvd {
namespace {

// A name in the same folder as `path`. Empty if the system has no random
// numbers.
std::string SecretName(const std::string& path) {
  uint64_t secret[2];
  if (getrandom(secret, sizeof(secret), 0) != sizeof(secret)) return "";
  char name[64];
  std::snprintf(name, sizeof(name), ".tf_hvd-%016" PRIx64 "%016" PRIx64,
                secret[0], secret[1]);
  return path.substr(0, path.rfind('/') + 1) + name;  // npos + 1: 0
}

// Describes an existing file that may not be replaced; otherwise empty.
const char* WhatStands(int folder, const std::string& path) {
  struct stat about = {};
  if (fstatat(folder, path.c_str(), &about, AT_SYMLINK_NOFOLLOW) != 0) {
    return "";
  }
  switch (about.st_mode & S_IFMT) {
    case S_IFREG:
      return "";
    case S_IFDIR:
      return "it is a folder, not a file";
    case S_IFIFO:
      return "it is a pipe, not a file";
    case S_IFLNK:
      return "it is a symbolic link, not a file";
    default:
      return "it is a device, not a file";
  }
}

}  // namespace

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

int PutFile(int folder, const std::string& path, mode_t mode,
            const std::function<int(int file)>& fill, std::string* why) {
  *why = WhatStands(folder, path);
  if (!why->empty()) return -1;
  const std::string fresh = SecretName(path);
  const int file =
      openat(folder, fresh.c_str(),
             O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
  int error = file < 0 ? errno : fill(file);
  if (error == 0) {
    if (renameat(folder, fresh.c_str(), folder, path.c_str()) == 0) return file;
    error = errno;
  }
  *why = std::strerror(error);
  if (file >= 0) {
    unlinkat(folder, fresh.c_str(), 0);
    close(file);
  }
  return -1;
}

}  // namespace tf_hvd
