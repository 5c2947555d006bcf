// What a caller hands in and what becomes of it on this rank. CallerState: the
// bond between a request and whoever waits for it. Completion: the promise that
// the outcome is told exactly once. Entry: one submitted request, with the
// memory that it reads and writes.
#ifndef TF_HVD_RUNTIME_REQUEST_ENTRY_H_
#define TF_HVD_RUNTIME_REQUEST_ENTRY_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/memory.h"
#include "base/mutex.h"
#include "base/status.h"
#include "runtime/request/call_record.h"
#include "runtime/request/request.h"
#include "runtime/request/sources.h"

namespace tf_hvd {

// A caller may go before its request has ended, as a step of TensorFlow's does
// that has failed elsewhere. The request is then detached: it stays in the
// runtime, takes part as it would have, so that no other rank is disturbed, and
// its result is dropped.
//
// Any thread. Of GiveUp and Answer exactly one call is ever true, and whoever
// got it tells the caller.
class CallerState {
 public:
  // The caller goes without a result.
  bool GiveUp() { return Take(State::kGone); }

  // The request has ended, and the caller gets the result.
  bool Answer() { return Take(State::kAnswered); }

  // True once it has given up.
  bool gone() const { return state_ == State::kGone; }

  // Calls `use` if the caller is still waiting, which does not end meanwhile.
  // For what belongs to the caller and is not the request's to keep. `use` must
  // not call back.
  bool WhileWaiting(const std::function<void()>& use) {
    const MutexLock lock(&mutex_);
    if (state_ != State::kWaiting) return false;
    use();
    return true;
  }

 private:
  enum class State { kWaiting, kAnswered, kGone };

  bool Take(State end) {
    const MutexLock lock(&mutex_);
    if (state_ != State::kWaiting) return false;
    state_ = end;
    return true;
  }

  Mutex mutex_;  // held by what changes state_, and by WhileWaiting
  std::atomic<State> state_{State::kWaiting};
};

// One that is dropped without having been fired completes with an error, so
// that no caller can wait for ever on a request that got lost.
//
// Fire() is called without the progress lock (a callback may submit again), by
// whoever had it, or by the completion thread; the callback may therefore run
// on any thread.
class Completion {
 public:
  // `value` is the result of requests that have one: the last rank for join,
  // the number of the new set for add_process_set. 0 otherwise.
  using Callback = std::function<void(const Status& status, int32_t value)>;

  Completion() = default;
  explicit Completion(Callback callback) : callback_(std::move(callback)) {}
  Completion(Completion&& other) noexcept { *this = std::move(other); }
  Completion& operator=(Completion&& other) noexcept {
    if (this != &other) {
      Drop();
      callback_ = std::exchange(other.callback_, nullptr);
      record_ = other.record_;
    }
    return *this;
  }
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;
  ~Completion() { Drop(); }

  // What it is to be recorded in how the request ended, and whoever moves it on
  // says how far it is.
  void set_record(const CallRecord& record) { record_ = record; }
  CallRecord& record() { return record_; }

  // True until fired or moved from.
  bool pending() const { return callback_ != nullptr; }

  // A second call does nothing.
  void Fire(const Status& status, int32_t value = 0) {
    if (const Callback callback = std::exchange(callback_, nullptr)) {
      record_.Ended(status);
      callback(status, value);
    }
  }

 private:
  void Drop() {
    if (pending()) Fire(Internal("bug in tf_hvd: a request was dropped"));
  }

  Callback callback_;
  CallRecord record_;
};

struct Entry;

// Hears more of a request than its end. Called by the holder of the progress
// lock, which it must not keep.
class EntryListener {
 public:
  virtual ~EntryListener() = default;
  // Once: its memory is used from now on, and may still be exchanged for other.
  virtual void Begins(Entry* entry) = 0;
  // Of a device's memory, once: all that is left to be done lies on a stream of
  // the device. The event fires when it has been done, and the request ends
  // after that. Where the host does the last part this is never called.
  virtual void Enqueued(std::shared_ptr<GpuEvent> event) = 0;
};

// Made by a kernel (or the C API) on any thread, handed over to the tensor
// queue, from then on owned by the holder of the progress lock.
struct Entry {
  int32_t set = kWorldSet;
  std::string name;
  Request request;
  // By tensor; `count` is of the input. `output` may equal `input` (in place).
  // For allgather and alltoall it is null until `allocate` has given it.
  std::vector<Span> tensors;
  // Where all of them lie; as request.device says.
  Memory memory;
  // See OperationSpec::stored.
  std::optional<DType> stored;

  // Allgather: how many rows each tensor has here. Alltoall: how many go to
  // each rank of the set.
  std::vector<int64_t> rows;

  // Allgather and alltoall: called once for each tensor, by the holder of the
  // progress lock, when it is known how many rows come from each rank
  // (`first_dims`, in the order of the set's ranks). Gives the memory for the
  // whole result.
  std::function<Status(size_t tensor, const std::vector<int64_t>& first_dims,
                       void** output)>
      allocate;

  // Of a device's memory: called when `allocate` has given all of it. Gives the
  // event after which it may be used.
  std::function<Status(std::shared_ptr<GpuEvent>* ready)> allocated;

  // Keeps the memory in `tensors` alive; the runtime lets go of it when no
  // transport can still touch that memory, which after an abort may be later
  // than the completion.
  std::shared_ptr<void> keepalive;

  // Not ok when the call fails on this rank alone: it is completed here with
  // this, and its text is voted as a local error, so that the other ranks fail
  // as well.
  Status local_error;
  int64_t step = -1;  // the caller's, compared between ranks; -1: none
  // What the tensors are the gradients of, compared between ranks; null: they
  // are none, or it is not known.
  std::shared_ptr<const SourceList> sources;
  // Where the program makes the call, as "train.py:88"; for the recorder alone,
  // which reads it before Submit returns.
  std::string_view source;

  Completion done;

  // May be null.
  std::shared_ptr<EntryListener> listener;

  // Null: the caller stays until `done` is fired.
  std::shared_ptr<const CallerState> caller;

  // The thread that submits has nothing to do before `done` is fired, as that
  // of an eager call: it may move the request itself, of any size.
  bool caller_waits = false;

  int64_t submitted_ns = 0;  // set by the queue: for the stall report
};

// True if nobody waits for the entry any more, which may still be needed by
// other ranks: it was refused here, or its caller has gone.
inline bool IsAnswered(const Entry& entry) {
  return !entry.done.pending() ||
         (entry.caller != nullptr && entry.caller->gone());
}

// What the entry moves through this rank's memory. Of allgather the other
// ranks' rows are not known yet: as if all of them gave as much as this one.
inline int64_t ExpectedBytes(const Entry& entry, size_t ranks) {
  const OpKind kind = entry.request.kind;
  if (!RowsDiffer(kind)) return TotalBytes(entry.request);
  int64_t bytes = 0;
  for (size_t i = 0; i < entry.tensors.size(); ++i) {
    bytes += entry.tensors[i].count *
             static_cast<int64_t>(SizeOf(entry.request.tensors[i].dtype));
  }
  return YieldOf(kind) == Yield::kAllRows ? bytes * static_cast<int64_t>(ranks)
                                          : bytes;
}

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_REQUEST_ENTRY_H_
