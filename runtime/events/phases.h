// PhaseLog: what operations on their way did and when, from the holder of the
// progress lock to the timeline's thread. Of a bounded number of spans: while
// nobody takes them out, further ones are counted and forgotten, and nobody
// waits.
//
// PhaseTimer: one operation's, which finds the spans.
#ifndef TF_HVD_RUNTIME_EVENTS_PHASES_H_
#define TF_HVD_RUNTIME_EVENTS_PHASES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace tf_hvd {

enum class Phase : uint8_t {
  kPack = 0,      // tensors are laid where they are sent from
  kReduce = 1,    // elements are reduced
  kExchange = 2,  // messages are on their way
  kUnpack = 3,    // results are laid into tensors
  kWait = 4,      // for a rank's data
};

struct PhaseSpan {
  uint64_t operation = 0;  // as RecordingSlot has it
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  Phase phase = Phase::kWait;
  int32_t awaited = -1;  // kWait: that rank
};

class PhaseLog {
 public:
  static constexpr size_t kSpans = 1 << 15;

  // Any thread. Off, which it is at first, it costs a look.
  bool on() const { return on_.load(std::memory_order_acquire); }

  // Any thread. False if somebody has started it and not stopped it; else all
  // that follow are this thread's.
  bool Start();
  void Stop();
  // Appends what has come to `spans`.
  void Take(std::vector<PhaseSpan>* spans);
  // Spans that were forgotten since Start.
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

  // Holder of the progress lock.
  void Add(const PhaseSpan& span);

 private:
  std::atomic<bool> on_{false};
  std::atomic<bool> taking_{false};    // from Start to Stop
  std::unique_ptr<PhaseSpan[]> ring_;  // there from the first start on
  std::atomic<uint64_t> written_{0};
  std::atomic<uint64_t> taken_{0};
  std::atomic<uint64_t> dropped_{0};
};

// Holder of the progress lock only.
class PhaseTimer {
 public:
  PhaseTimer(PhaseLog* log, uint64_t operation)
      : log_(log), operation_(operation) {}

  // The operation is looked at; what it does counts from here.
  void Enter(int64_t now_ns);
  // It did this, since Enter or since the last of it.
  void Did(Phase phase, int64_t now_ns);
  // The look is over; `awaited`: for whose data; -1: nobody's.
  void Exit(int awaited, int64_t now_ns);
  // It has ended.
  void Flush();

 private:
  void Put(const PhaseSpan& span);

  PhaseLog* const log_;
  const uint64_t operation_;
  int64_t since_ns_ = 0;
  PhaseSpan wait_;  // that lasts; awaited -1: it does not wait
  PhaseSpan last_;  // may become longer; end_ns 0: there is none
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EVENTS_PHASES_H_
