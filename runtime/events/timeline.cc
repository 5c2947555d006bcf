#include "runtime/events/timeline.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "runtime/events/rank_file.h"
#include "runtime/events/trace_builder.h"

namespace tf_hvd {
namespace {

// Polling costs less than waking a thread. A burst of calls does not wait this
// long: the recorder has room for 2000, and 50,000 per second have been
// measured.
constexpr auto kTurn = std::chrono::milliseconds(20);
constexpr auto kBusyTurn = std::chrono::milliseconds(10);
constexpr size_t kBusyBytes = size_t{64} << 10;  // built in one turn
// Before Stop gives up on a file.
constexpr auto kPatience = std::chrono::seconds(5);
constexpr int64_t kClockNs = 2 * kSecond;
constexpr char kThreadName[] = "tf_hvd timeline";

// -1 and the reason if the file cannot be written, or if another timeline
// writes it and holds its lock, at the latest until that process ends.
int Open(const std::string& path, std::string* why) {
  int before = -1;
  struct stat about = {};
  // A file without links has just been replaced. Some file systems always
  // report no links.
  for (int tries = 0; about.st_nlink == 0 && tries < 100; ++tries) {
    if (before >= 0) close(before);
    before = open(path.c_str(),
                  O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (before < 0 || fstat(before, &about) != 0) break;
    if (flock(before, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      close(before);
      *why =
          "another timeline is being written to this file; choose another file";
      return -1;
    }
  }
  const auto lock = [](int file) {
    flock(file, LOCK_EX | LOCK_NB);  // some file systems do not support locks
    return 0;
  };
  const int file = PutFile(AT_FDCWD, path, 0666, lock, why);
  if (before >= 0) close(before);
  return file;
}

// A child forked meanwhile has inherited the file, and its lock.
void Close(int file) {
  flock(file, LOCK_UN);
  close(file);
}

}  // namespace

struct Timeline::Shared {
  std::string who;
  std::string path;
  int64_t full_bytes = 0;      // 0: never
  PhaseLog* phases = nullptr;  // null: another timeline has them
  std::function<Clock()> clock;
  int64_t begun_ns = 0;
  std::shared_ptr<TraceForm> form;

  Mutex mutex;
  std::condition_variable changed;
  std::unique_ptr<TraceBuilder> builder GUARDED_BY(mutex);
  bool ended GUARDED_BY(mutex) = false;  // nothing more is built
  std::string built GUARDED_BY(mutex);
  bool written GUARDED_BY(mutex) = false;  // the thread has ended

  int file = -1;           // the thread's; -1: in memory only
  int64_t file_bytes = 0;  // the thread's

  void Build(bool last) REQUIRES(mutex);
  void End() REQUIRES(mutex);
  void Run();
  std::string Write(std::string_view bytes, bool may_be_full);
};

Status Timeline::Start(const TimelineSettings& settings, TraceHead head,
                       const Recorder* recorder, PhaseLog* phases,
                       std::function<Clock()> clock,
                       std::unique_ptr<Timeline>* timeline) {
  const auto shared = std::make_shared<Shared>();
  shared->who = "rank " + std::to_string(head.rank) + " (" + head.host + ")";
  shared->path = RankFile(settings.path, head.rank);
  shared->full_bytes = settings.limit_bytes / 2;
  shared->clock = std::move(clock);
  std::string why;
  shared->file = Open(shared->path, &why);
  if (shared->file < 0) {
    return InvalidArgument("the timeline cannot be written to " + shared->path +
                           ": " + why);
  }
  // A previous timeline's file.
  unlink(BeforeSuffix(shared->path, ".before").c_str());
  shared->form = MakeTraceJson();
  timeline->reset(new Timeline(shared, std::move(head), recorder, phases,
                               kHorovodTraceNames, settings.mark_cycles));
  return Status::Ok();
}

std::unique_ptr<Timeline> Timeline::StartInMemory(
    std::shared_ptr<TraceForm> form, TraceHead head, const Recorder* recorder,
    PhaseLog* phases) {
  const auto shared = std::make_shared<Shared>();
  shared->clock = [] { return Clock{0, 0}; };
  shared->form = std::move(form);
  return std::unique_ptr<Timeline>(new Timeline(
      shared, std::move(head), recorder, phases, kTraceNames, false));
}

Timeline::Timeline(std::shared_ptr<Shared> shared, TraceHead head,
                   const Recorder* recorder, PhaseLog* phases,
                   const TraceNames& names, bool mark_cycles)
    : shared_(std::move(shared)) {
  shared_->begun_ns = NowNs();
  head.time_ns = shared_->begun_ns;
  head.realtime_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count();
  if (phases->Start()) shared_->phases = phases;
  shared_->builder =
      std::make_unique<TraceBuilder>(std::move(head), recorder, shared_->phases,
                                     shared_->form.get(), names, mark_cycles);
  shared_->builder->Begin(&shared_->built);
  std::thread thread([shared = shared_] { shared->Run(); });
  pthread_setname_np(thread.native_handle(), kThreadName);
  thread.detach();
}

// Waits until the clock offset is known: the recorder has room for the calls
// made meanwhile.
void Timeline::Shared::Build(bool last) {
  const Clock now = clock();
  const bool known = now.error_ns >= 0 || NowNs() > begun_ns + kClockNs;
  if (known || last) builder->Build(now.offset_ns, now.error_ns, &built);
}

// From here on the recording is not read any more.
void Timeline::Shared::End() {
  ended = true;
  if (phases != nullptr) phases->Stop();
  changed.notify_all();
}

void Timeline::Shared::Run() {
  std::string bytes;
  for (bool last = false; !last;) {
    {
      const auto turn = bytes.size() < kBusyBytes ? kTurn : kBusyTurn;
      MutexLock lock(&mutex);
      changed.wait_for(lock.native(), turn,
                       [this]() REQUIRES(mutex) { return ended; });
      last = ended;
      if (!last) Build(false);
      bytes = std::exchange(built, {});
    }
    const std::string why = Write(bytes, !last);
    if (why.empty()) continue;
    WriteLog(LogLevel::kWarning, who,
             "the timeline ends here: " + path + ": " + why);
    const MutexLock lock(&mutex);
    End();
    last = true;
  }
  if (file >= 0) Close(file);
  const MutexLock lock(&mutex);
  written = true;
  changed.notify_all();
}

// Empty, or the reason for a failure.
std::string Timeline::Shared::Write(std::string_view bytes, bool may_be_full) {
  if (file < 0) return "";
  const int error = WriteAll(file, bytes);
  if (error != 0) return std::strerror(error);
  file_bytes += static_cast<int64_t>(bytes.size());
  if (!may_be_full || full_bytes == 0 || file_bytes < full_bytes) return "";
  Close(file);
  std::rename(path.c_str(), BeforeSuffix(path, ".before").c_str());
  std::string why;
  file = Open(path, &why);
  file_bytes = 0;
  if (file < 0) return why;
  const MutexLock lock(&mutex);
  std::string begin;
  builder->Begin(&begin);
  built.insert(0, begin);
  return "";
}

void Timeline::Stop() {
  MutexLock lock(&shared_->mutex);
  if (!shared_->ended) {
    shared_->Build(true);
    shared_->End();
  }
  shared_->changed.wait_for(
      lock.native(), kPatience,
      [this]() REQUIRES(shared_->mutex) { return shared_->written; });
}

Timeline::~Timeline() { Stop(); }

}  // namespace tf_hvd
