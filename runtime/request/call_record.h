// CallRecord: one call's entry in the rank's log of calls. Its writers follow
// one another: the submitting thread, the holders of the progress lock, and the
// thread that fires the completion. CallLog: that log, kept by the flight
// recorder (runtime/events/recorder.h).
#ifndef TF_HVD_RUNTIME_REQUEST_CALL_RECORD_H_
#define TF_HVD_RUNTIME_REQUEST_CALL_RECORD_H_

#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace tf_hvd {

// Calls are numbered from 1. Updates for calls that the log has dropped are
// ignored.
class CallLog {
 public:
  virtual void Agreed(uint64_t call, int64_t order, int last,
                      int64_t now_ns) = 0;
  virtual void Started(uint64_t call, uint64_t operation, int64_t now_ns) = 0;
  virtual void MovesBy(uint64_t call, std::string_view backend) = 0;
  virtual void Moved(uint64_t call, double part, int awaited) = 0;
  virtual void Ended(uint64_t call, const Status& status) = 0;

 protected:
  ~CallLog() = default;
};

// All members do nothing if the call is not recorded.
class CallRecord {
 public:
  CallRecord() = default;
  CallRecord(CallLog* log, uint64_t call) : log_(log), call_(call) {}

  // The call has been ordered, at this position in its set; `last`: the last
  // rank to make it.
  void Agreed(int64_t order, int last, int64_t now_ns) {
    if (log_ != nullptr) log_->Agreed(call_, order, last, now_ns);
  }
  // Starts together with all calls of the same operation.
  void Started(uint64_t operation, int64_t now_ns) {
    if (log_ != nullptr) log_->Started(call_, operation, now_ns);
  }
  void MovesBy(std::string_view backend) {
    if (log_ != nullptr) log_->MovesBy(call_, backend);
  }
  // `part`: fraction of the operation done, 0 to 1; `awaited`: the rank that
  // this one needs data from; -1: none.
  void Moved(double part, int awaited) {
    if (log_ != nullptr) log_->Moved(call_, part, awaited);
  }
  void Ended(const Status& status) {
    if (log_ != nullptr) log_->Ended(call_, status);
  }

 private:
  CallLog* log_ = nullptr;
  uint64_t call_ = 0;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_REQUEST_CALL_RECORD_H_
