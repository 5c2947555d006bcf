#include "base/log.h"

#include <unistd.h>

#include <array>

namespace tf_hvd {
namespace {
constexpr std::array<const char*, 6> kWords = {
    {"trace", "debug", "info", "warning", "error", "fatal"}};
}  // namespace

bool ParseLogLevel(const std::string& word, LogLevel* level) {
  for (size_t i = 0; i < kWords.size(); ++i) {
    if (word == kWords[i]) {
      *level = static_cast<LogLevel>(i);
      return true;
    }
  }
  return false;
}

void WriteLog(LogLevel level, const std::string& who, const std::string& text) {
  const std::string line = std::string("tf_hvd ") +
                           kWords[static_cast<size_t>(level)] + ", " + who +
                           ": " + text + "\n";
  // A log line that cannot be written must not end training.
  const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
  static_cast<void>(written);
}

}  // namespace tf_hvd
