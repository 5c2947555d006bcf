#include "base/main_thread.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace tf_hvd {
namespace {

// Several calls may be awaited at once; one answer serves all of them.
constexpr int64_t kFreshNs = 100 * kMs;
constexpr size_t kMostBytes = 16 * 1024;  // of the frames
constexpr size_t kLongest = 120;          // of a file's name, and a function's

// The text between two others; `rest` becomes the text after it.
std::string_view Between(std::string_view start, std::string_view end,
                         std::string_view* rest) {
  const size_t from = rest->find(start);
  if (from == std::string_view::npos) return {};
  rest->remove_prefix(from + start.size());
  const std::string_view found = rest->substr(0, rest->find(end));
  rest->remove_prefix(found.size());
  return found;
}

bool IsOthers(std::string_view file, const std::vector<std::string>& others) {
  return file.substr(0, 1) == "<" ||
         std::any_of(others.begin(), others.end(), [file](const auto& part) {
           return file.find(part) != std::string_view::npos;
         });
}

std::string Text(std::string_view file, std::string_view line,
                 std::string_view function, const std::string& folder) {
  if (!folder.empty() && file.substr(0, folder.size()) == folder) {
    file.remove_prefix(folder.size());
  }
  const bool fits = file.size() <= kLongest;
  return (fits ? "" : "...") +
         std::string(file.substr(fits ? 0 : file.size() - kLongest)) +
         ", line " + std::string(line) + ", in " +
         std::string(function.substr(0, kLongest));
}

}  // namespace

std::string PlaceIn(std::string_view frames,
                    const std::vector<std::string>& others,
                    const std::string& folder) {
  std::string innermost;
  while (!frames.empty()) {
    const std::string_view whole = frames.substr(0, frames.find('\n'));
    frames.remove_prefix(std::min(whole.size() + 1, frames.size()));
    std::string_view rest = whole;
    const std::string_view file = Between("  File \"", "\", line ", &rest);
    const std::string_view line = Between("\", line ", " in ", &rest);
    const std::string_view function = Between(" in ", "\n", &rest);
    if (file.empty() || line.empty() || function.empty()) continue;
    if (!IsOthers(file, others)) return Text(file, line, function, folder);
    if (innermost.empty()) innermost = Text(file, line, function, folder);
  }
  return innermost;
}

MainThread::MainThread(int signal, int file, std::vector<std::string> others)
    : signal_(signal), file_(file), others_(std::move(others)) {
  sigaction(signal_, nullptr, &handler_);
}

// Without the handler the signal would end the process, and another handler
// would do something else. The file's number may have been reused by the
// program.
bool MainThread::IsOurs() const {
  struct sigaction now = {};
  return sigaction(signal_, nullptr, &now) == 0 &&
         now.sa_handler == handler_.sa_handler && now.sa_handler != SIG_DFL &&
         file_.IsOpen();
}

bool MainThread::Answered() const {
  return lseek(file_.number(), 0, SEEK_END) > 0;
}

// A request that is still unanswered covers this one: if the main thread takes
// no signals, they would all arrive at once afterwards.
bool MainThread::Ask() {
  if (!IsOurs()) return false;
  const int64_t now_ns = NowNs();
  if (asked_ns_ > 0 && (now_ns - asked_ns_ < kFreshNs || !Answered())) {
    return true;
  }
  if (ftruncate(file_.number(), 0) != 0) return false;
  if (lseek(file_.number(), 0, SEEK_SET) != 0) return false;
  // The main thread's ID equals the process's.
  const bool asked = syscall(SYS_tgkill, getpid(), getpid(), signal_) == 0;
  asked_ns_ = asked ? now_ns : 0;
  return asked;
}

std::string MainThread::Place() const {
  if (asked_ns_ == 0 || !IsOurs()) return "";
  std::string frames(kMostBytes, '\0');
  const ssize_t bytes = pread(file_.number(), frames.data(), kMostBytes, 0);
  frames.resize(bytes < 0 ? 0 : static_cast<size_t>(bytes));
  char folder[4096];
  const bool has_folder = getcwd(folder, sizeof(folder)) != nullptr;
  return PlaceIn(frames, others_,
                 has_folder ? std::string(folder) + "/" : std::string());
}

}  // namespace tf_hvd
