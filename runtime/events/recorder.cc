#include "runtime/events/recorder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/contract.h"
#include "runtime/events/rank_file.h"

namespace tf_hvd {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr unsigned kNeverExecuted = 0x0008U;  // MFD_NOEXEC_SEAL, Linux 6.3

uint64_t Magic() {
  uint64_t magic = 0;
  std::memcpy(&magic, RecordingHeader::kMagic, sizeof(magic));
  return magic;
}

RecordingSlot* SlotAt(char* memory, uint64_t number) {
  const size_t place = (number - 1) % kRecordedCalls;
  return reinterpret_cast<RecordingSlot*>(memory + kRecordingHeaderBytes) +
         place;
}

// Copies word by word, the number first; the caller checks the number again
// afterwards. Consistent if the call's end was seen before: otherwise the call
// may end meanwhile.
RecordedCall CopyOf(const RecordingSlot& slot) {
  using Word [[gnu::may_alias]] = uint64_t;
  RecordedCall copy{};
  const auto* const from = reinterpret_cast<const Word*>(&slot);
  auto* const to = reinterpret_cast<Word*>(&copy);
  for (size_t i = 0; i < sizeof(copy) / sizeof(Word); ++i) {
    to[i] = __atomic_load_n(&from[i], __ATOMIC_ACQUIRE);
  }
  return copy;
}

// Whether the file was handed over and is free: not used yet, or used by this
// process, which has left the job since. A process that a rank starts inherits
// the variable, and may have another file under that number.
bool TakeHandedOver(int file) {
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  char name[256] = {};
  struct stat about = {};
  if (file <= 2 || readlink(link.c_str(), name, sizeof(name) - 1) <= 0 ||
      std::strstr(name, kRecorder) == nullptr || fstat(file, &about) != 0) {
    return false;
  }
  fcntl(file, F_SETFD, FD_CLOEXEC);
  if (about.st_size == 0) return ftruncate(file, kRecordingBytes) == 0;
  int32_t process = 0;
  uint32_t state = 0;
  return pread(file, &process, sizeof(process),
               offsetof(RecordingHeader, process)) == sizeof(process) &&
         pread(file, &state, sizeof(state), offsetof(RecordingHeader, state)) ==
             sizeof(state) &&
         process == getpid() &&
         state != static_cast<uint32_t>(RankState::kJoined);
}

std::string ErrorText() { return std::strerror(errno); }

// A launcher's name for its job may contain slashes.
std::string FileName(std::string job) {
  std::replace(job.begin(), job.end(), '/', '_');
  return job;
}

// A folder that only this user can write to, so that no other user can put a
// link there.
int OpenOwn(const std::string& folder, std::string* why) {
  const int opened =
      open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (opened < 0) {
    *why = folder + ": " + ErrorText();
    return -1;
  }
  struct stat about = {};
  if (fstat(opened, &about) == 0 && about.st_uid == geteuid() &&
      (about.st_mode & (S_IWGRP | S_IWOTH)) == 0) {
    return opened;
  }
  *why = folder + " is not owned by this user, or other users can write to it";
  close(opened);
  return -1;
}

// Allocates all space now, so that a full disk is an error here instead of a
// SIGBUS later.
int CreateIn(const std::string& dumps, const std::string& job, int rank,
             std::string* path, std::string* why) {
  // The program may change its working directory.
  char here[PATH_MAX] = "";
  const bool relative = dumps.front() != '/';
  if (relative && getcwd(here, sizeof(here)) == nullptr) {
    *why = "getcwd: " + ErrorText();
    return -1;
  }
  const std::string parent = relative ? std::string(here) + "/" + dumps : dumps;
  const std::string folder = parent + "/" + FileName(job);
  if ((mkdir(parent.c_str(), 0777) != 0 && errno != EEXIST) ||
      (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)) {
    *why = "mkdir " + folder + ": " + ErrorText();
    return -1;
  }
  const int opened = OpenOwn(folder, why);
  if (opened < 0) return -1;
  const std::string name = "rank." + std::to_string(rank);
  *path = folder + "/" + name;
  unlinkat(opened, name.c_str(), 0);  // of an earlier job
  const int file = PutFile(
      opened, name, 0600,
      [](int made) { return posix_fallocate(made, 0, kRecordingBytes); }, why);
  if (file < 0) *why = *path + ": " + *why;
  close(opened);
  return file;
}

int CreateUnnamed(std::string* why) {
  // Some machines allow only files that can never be executed.
  int file = memfd_create(kRecorder, MFD_CLOEXEC | kNeverExecuted);
  if (file < 0 && errno == EINVAL) {  // older kernels reject the flag
    file = memfd_create(kRecorder, MFD_CLOEXEC);
  }
  if (file >= 0 && ftruncate(file, kRecordingBytes) == 0) return file;
  *why = "memfd_create: " + ErrorText();
  if (file >= 0) close(file);
  return -1;
}

CallerKind CallerOf(const Entry& entry) {
  if (entry.caller_waits) return CallerKind::kWaits;
  return entry.request.compiled ? CallerKind::kCompiled : CallerKind::kGraph;
}

int64_t RealtimeNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

std::unique_ptr<Recorder> Recorder::Make(const RecordingPlace& place,
                                         const RecordingRank& rank,
                                         std::string* why) {
  std::string path;
  int file = place.descriptor;
  const bool handed_over = TakeHandedOver(file);
  if (!handed_over) {
    file = place.folder.empty()
               ? CreateUnnamed(why)
               : CreateIn(place.folder, rank.job, rank.launched, &path, why);
  }
  if (file < 0) return nullptr;
  void* const memory = mmap(nullptr, kRecordingBytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_POPULATE, file, 0);
  if (memory == MAP_FAILED) {
    *why = "mmap: " + ErrorText();
    if (!handed_over) close(file);
    return nullptr;
  }
  // From an earlier job of this process.
  if (handed_over) std::memset(memory, 0, kRecordingBytes);
  std::unique_ptr<Recorder> recorder(
      new Recorder(OpenFile(file), static_cast<char*>(memory), handed_over,
                   std::move(path)));
  RecordingHeader* const header = recorder->header();
  header->version = RecordingHeader::kVersion;
  header->header_bytes = kRecordingHeaderBytes;
  header->slot_bytes = sizeof(RecordingSlot);
  header->capacity = kRecordedCalls;
  header->rank = rank.rank;
  header->size = rank.size;
  header->process = getpid();
  header->launched = rank.launched;
  header->part = rank.part;
  header->host.Set(rank.host);
  header->job.Set(handed_over ? place.descriptor_job : rank.job);
  header->steady_ns = NowNs();
  header->realtime_ns = RealtimeNs();
  header->state = static_cast<uint32_t>(RankState::kJoined);
  header->magic = Magic();
  return recorder;
}

Recorder::Recorder(OpenFile file, char* memory, bool handed_over,
                   std::string path)
    : file_(file),
      memory_(memory),
      handed_over_(handed_over),
      path_(std::move(path)) {}

Recorder::~Recorder() {
  munmap(memory_, kRecordingBytes);
  // The process may join a job again.
  if (!handed_over_) file_.Close();
}

RecordingSlot* Recorder::SlotOf(uint64_t call) const {
  RecordingSlot* const slot = SlotAt(memory_, call);
  return slot->number.load(kRelaxed) == call ? slot : nullptr;
}

void Recorder::Agreed(uint64_t call, int64_t order, int last, int64_t now_ns) {
  RecordingSlot* const one = SlotOf(call);
  if (one == nullptr) return;
  one->order.store(order, kRelaxed);
  one->last.store(static_cast<uint16_t>(last + 1), kRelaxed);
  one->agreed_ns.store(now_ns, kRelaxed);
}

void Recorder::Started(uint64_t call, uint64_t operation, int64_t now_ns) {
  RecordingSlot* const one = SlotOf(call);
  if (one == nullptr) return;
  one->operation.store(operation, kRelaxed);
  one->started_ns.store(now_ns, kRelaxed);
}

void Recorder::MovesBy(uint64_t call, std::string_view backend) {
  if (RecordingSlot* const one = SlotOf(call)) one->backend.Set(backend);
}

void Recorder::Moved(uint64_t call, double part, int awaited) {
  RecordingSlot* const one = SlotOf(call);
  if (one == nullptr) return;
  one->part.store(part, kRelaxed);
  one->awaited.store(awaited + 1, kRelaxed);
}

void Recorder::Ended(uint64_t call, const Status& status) {
  RecordingSlot* const one = SlotOf(call);
  if (one == nullptr) return;
  one->code.store(status.code(), kRelaxed);
  one->ended_ns.store(NowNs(), kRelaxed);
  if (status.ok()) return;
  if (status.code() != StatusCode::kAborted) {
    Failed(call, status.message());
  } else if (header()->lost_call.load(kRelaxed) == 0) {
    header()->lost_call.store(call, kRelaxed);
  }
}

CallRecord Recorder::Add(const Entry& entry) {
  const Request& request = entry.request;
  const TensorSpec none{DType::kUint8, {}};
  const TensorSpec& first =
      request.tensors.empty() ? none : request.tensors.front();
  if (header()->ended_told_ns.load(kRelaxed) != 0 &&
      header()->lost_call.load(kRelaxed) != 0) {
    return {};
  }
  const uint64_t number = header()->calls.fetch_add(1, kRelaxed) + 1;
  RecordingSlot* const slot = SlotAt(memory_, number);
  // The following writes must not become visible earlier. An exchange, because
  // ThreadSanitizer does not support fences.
  slot->number.exchange(0, std::memory_order_acq_rel);
  slot->submitted_ns.store(NowNs(), kRelaxed);
  for (auto* const later :
       {&slot->agreed_ns, &slot->started_ns, &slot->ended_ns, &slot->order}) {
    later->store(0, kRelaxed);
  }
  slot->part.store(0, kRelaxed);
  slot->operation.store(0, kRelaxed);
  slot->awaited.store(0, kRelaxed);
  slot->code.store(StatusCode::kOk, kRelaxed);
  slot->last.store(0, kRelaxed);
  slot->backend.Set({});
  slot->bytes.store(ExpectedBytes(entry, 1), kRelaxed);
  slot->step.store(entry.step, kRelaxed);
  slot->set.store(entry.set, kRelaxed);
  slot->tensors.store(static_cast<int32_t>(request.tensors.size()), kRelaxed);
  slot->kind.store(request.kind, kRelaxed);
  slot->reduce_op.store(request.reduce_op, kRelaxed);
  slot->device.store(request.device, kRelaxed);
  slot->caller.store(CallerOf(entry), kRelaxed);
  slot->dtype.store(first.dtype, kRelaxed);
  slot->dimensions.store(static_cast<int32_t>(first.shape.size()), kRelaxed);
  for (size_t i = 0; i < std::min(first.shape.size(), slot->shape.size());
       ++i) {
    slot->shape[i].store(first.shape[i], kRelaxed);
  }
  slot->name.Set(entry.name);
  slot->source.Set(entry.source);
  slot->number.store(number, std::memory_order_release);
  return {this, number};
}

uint64_t Recorder::calls() const { return header()->calls.load(kRelaxed); }

Recorder::Found Recorder::Read(uint64_t number, RecordedCall* call) const {
  const RecordingSlot& slot = *SlotAt(memory_, number);
  *call = CopyOf(slot);
  if (call->number < number) return Found::kComing;
  if (call->number != number) return Found::kGone;
  return slot.number.load(kRelaxed) == number ? Found::kThere : Found::kGone;
}

Recorder::Found Recorder::Look(uint64_t number, int64_t* ended_ns,
                               uint64_t* operation) const {
  const RecordingSlot& slot = *SlotAt(memory_, number);
  *ended_ns = slot.ended_ns.load(std::memory_order_acquire);
  *operation = slot.operation.load(std::memory_order_acquire);
  const uint64_t there = slot.number.load(kRelaxed);
  if (there == number) return Found::kThere;
  return there < number ? Found::kComing : Found::kGone;
}

void Recorder::Failed(uint64_t call, const std::string& text) {
  const MutexLock lock(&mutex_);
  header()->failed.Set(text);
  header()->failed_call = call;
}

void Recorder::EndedFor(const std::string& text) {
  const MutexLock lock(&mutex_);
  if (header()->ended_told_ns != 0) return;
  header()->ended.Set(text);
  ended_ = text;
  header()->ended_told_ns = NowNs();
}

std::string Recorder::ended() const {
  const MutexLock lock(&mutex_);
  return ended_;
}

void Recorder::Leaves(const std::string& reason, bool through) {
  const MutexLock lock(&mutex_);
  header()->reason.Set(reason);
  header()->left_ns = NowNs();
  header()->state =
      static_cast<uint32_t>(through ? RankState::kThrough : RankState::kFailed);
}

void Recorder::Left(bool aborted) {
  const bool in_order =
      header()->state == static_cast<uint32_t>(RankState::kThrough) &&
      header()->failed_call == 0 && header()->lost_call == 0 && !aborted;
  if (path_.empty() || !in_order) return;
  unlink(path_.c_str());
  rmdir(path_.substr(0, path_.rfind('/')).c_str());  // if it was the last one
}

}  // namespace tf_hvd
