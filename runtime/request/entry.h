// A submitted request and its state on this rank. CallerState: the link between
// a request and the thread that waits for it. Completion: guarantees that the
// outcome is reported exactly once. Entry: one submitted request, with the
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

// A caller may leave before its request has ended, as a step of TensorFlow's
// does that has failed elsewhere. The request is then detached: it stays in the
// runtime and takes part as usual, so that no other rank is disturbed, and its
// result is dropped.
//
// Any thread. Exactly one call of GiveUp or Answer returns true; the thread
// that made it reports to the caller.
class CallerState {
 public:
  // The caller leaves without a result.
  bool GiveUp() { return Take(State::kGone); }

  // The request has ended, and the caller receives the result.
  bool Answer() { return Take(State::kAnswered); }

  // True once the caller has given up.
  bool gone() const { return state_ == State::kGone; }

  // Calls `use` if the caller is still waiting, and keeps it from leaving
  // meanwhile. For data that the caller owns. `use` must not call back.
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

  Mutex mutex_;  // held while state_ changes, and by WhileWaiting
  std::atomic<State> state_{State::kWaiting};
};

// If dropped without having been fired it completes with an error, so that no
// caller waits indefinitely for a lost request.
//
// Fire() is called without the progress lock (a callback may submit again), by
// the thread that held it or by the completion thread. The callback may
// therefore run on any thread.
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

  // Sets the record that receives the request's progress and outcome.
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

// Receives events of a request before its end. Called by the holder of the
// progress lock, which it must not hold for long.
class EntryListener {
 public:
  virtual ~EntryListener() = default;
  // Once: its memory is used from now on, but may still be exchanged before
  // this returns.
  virtual void Begins(Entry* entry) = 0;
  // For device memory, once: all remaining work is on a stream of the device.
  // The event fires when that work is done; the request ends after that. Never
  // called if the host does the last part.
  virtual void Enqueued(std::shared_ptr<GpuEvent> event) = 0;
};

// Created by a kernel (or the C API) on any thread and pushed to the tensor
// queue. Afterwards owned by the holder of the progress lock.
struct Entry {
  int32_t set = kWorldSet;
  std::string name;
  Request request;
  // One span for each tensor; `count` is the input's. `output` may equal
  // `input` (in place). For allgather and alltoall it is null until `allocate`
  // has provided it.
  std::vector<Span> tensors;
  // The memory of all of them; matches request.device.
  Memory memory;
  // See OperationSpec::stored.
  std::optional<DType> stored;

  // Allgather: number of rows of each tensor on this rank. Alltoall: number of
  // rows for each rank of the set.
  std::vector<int64_t> rows;

  // Allgather and alltoall: called once for each tensor, by the holder of the
  // progress lock, when the number of rows from each rank is known
  // (`first_dims`, in the order of the set's ranks). Returns the memory for the
  // whole result.
  std::function<Status(size_t tensor, const std::vector<int64_t>& first_dims,
                       void** output)>
      allocate;

  // For device memory: called after the last `allocate`. Returns the event
  // after which the memory may be used.
  std::function<Status(std::shared_ptr<GpuEvent>* ready)> allocated;

  // Keeps the memory in `tensors` alive. The runtime releases it when no
  // transport can access that memory any more, which after an abort may be
  // later than the completion.
  std::shared_ptr<void> keepalive;

  // Not ok if the call fails on this rank only: it is completed here with this
  // status, and the text is voted as a local error, so that the other ranks
  // fail as well.
  Status local_error;
  int64_t step = -1;  // the caller's step, compared between ranks; -1: none
  // The variables that the tensors are gradients of, compared between ranks;
  // null: not gradients, or unknown.
  std::shared_ptr<const SourceList> sources;
  // The program line that makes the call, as "train.py:88". Used by the
  // recorder only, which reads it before Submit returns.
  std::string_view source;

  Completion done;

  // May be null.
  std::shared_ptr<EntryListener> listener;

  // Null: the caller waits until `done` is fired.
  std::shared_ptr<const CallerState> caller;

  // The submitting thread only waits until `done` is fired, as in an eager
  // call. It may therefore make the request's progress itself, whatever its
  // size.
  bool caller_waits = false;

  int64_t submitted_ns = 0;  // set by the queue, for the stall report
};

// True if no caller waits for the entry any more, although other ranks may
// still need it: it was refused here, or its caller has left.
inline bool IsAnswered(const Entry& entry) {
  return !entry.done.pending() ||
         (entry.caller != nullptr && entry.caller->gone());
}

// Number of bytes that the entry moves through this rank's memory. For
// allgather the other ranks' rows are not known yet; assumes that they equal
// this rank's.
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
