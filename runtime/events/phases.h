// PhaseLog: the phases of operations with their times, passed from the holder
// of the progress lock to the timeline's thread. Holds a limited number of
// spans: if they are not read in time, further ones are dropped and counted,
// and no thread waits.
//
// PhaseTimer: finds the spans of one operation.
#ifndef TF_HVD_RUNTIME_EVENTS_PHASES_H_
#define TF_HVD_RUNTIME_EVENTS_PHASES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace tf_hvd {

enum class Phase : uint8_t {
  kPack = 0,      // tensors are copied to the memory that is sent
  kReduce = 1,    // elements are reduced
  kExchange = 2,  // messages are in transit
  kUnpack = 3,    // results are copied into tensors
  kWait = 4,      // for a rank's data
};

struct PhaseSpan {
  uint64_t operation = 0;  // as in RecordingSlot
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  Phase phase = Phase::kWait;
  int32_t awaited = -1;  // kWait: the rank waited for
};

class PhaseLog {
 public:
  static constexpr size_t kSpans = 1 << 15;

  // Any thread. Initially off; then a call costs only this check.
  bool on() const { return on_.load(std::memory_order_acquire); }

  // Any thread. False if another thread has started it and not stopped it;
  // otherwise this thread receives all following spans.
  bool Start();
  void Stop();
  // Appends the new spans to `spans`.
  void Take(std::vector<PhaseSpan>* spans);
  // Number of spans dropped since Start.
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

  // Holder of the progress lock.
  void Add(const PhaseSpan& span);

 private:
  std::atomic<bool> on_{false};
  std::atomic<bool> taking_{false};    // from Start to Stop
  std::unique_ptr<PhaseSpan[]> ring_;  // allocated by the first Start
  std::atomic<uint64_t> written_{0};
  std::atomic<uint64_t> taken_{0};
  std::atomic<uint64_t> dropped_{0};
};

// Holder of the progress lock only.
class PhaseTimer {
 public:
  PhaseTimer(PhaseLog* log, uint64_t operation)
      : log_(log), operation_(operation) {}

  // A Progress call of the operation begins: phases are measured from here.
  void Enter(int64_t now_ns);
  // A phase has ended that began at Enter or at the previous Did.
  void Did(Phase phase, int64_t now_ns);
  // The Progress call ends; `awaited`: the rank that data is needed from; -1:
  // none.
  void Exit(int awaited, int64_t now_ns);
  // The operation has ended.
  void Flush();

 private:
  void Put(const PhaseSpan& span);

  PhaseLog* const log_;
  const uint64_t operation_;
  int64_t since_ns_ = 0;
  PhaseSpan wait_;  // current wait; awaited -1: none
  PhaseSpan last_;  // may still be extended; end_ns 0: none
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EVENTS_PHASES_H_
