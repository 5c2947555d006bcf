// P2PPlan: one rank's part of an operation, as data: messages that it posts,
// waits for them, and pieces of work, in sequence. Algorithms write plans;
// P2POperation executes them and never waits.
//
// Messages are posted in lanes, and a lane is waited for as a whole. Between
// two ranks, messages of an operation match in the order of their posting, so
// an algorithm must write them in the same order on both.
#ifndef TF_HVD_RUNTIME_TRANSPORT_P2P_PLAN_H_
#define TF_HVD_RUNTIME_TRANSPORT_P2P_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <utility>

#include "runtime/contract/operation.h"
#include "runtime/contract/rank_group.h"
#include "runtime/contract/spans.h"

namespace tf_hvd {

// Returns memory of at least this size that exists until the end of the
// operation. Called at most once per operation.
using Staging = std::function<char*(size_t bytes)>;

class P2PPlan {
 public:
  // Processes the elements [begin, begin + count).
  using Work = std::function<void(int64_t begin, int64_t count)>;

  struct Step {
    enum Kind { kSend, kReceive, kWait, kWork };
    Kind kind = kWait;
    size_t lane = 0;
    int peer = 0;
    void* data = nullptr;
    size_t bytes = 0;
    Work work = nullptr;
    int64_t count = 0;  // of work
    int64_t block = 0;  // the maximum number processed at once
    bool copies = false;
  };

  void Send(size_t lane, int peer, const void* data, size_t bytes) {
    if (bytes == 0) return;
    steps_.push_back({Step::kSend, lane, peer, const_cast<void*>(data), bytes});
  }
  void Receive(size_t lane, int peer, void* data, size_t bytes) {
    if (bytes == 0) return;
    steps_.push_back({Step::kReceive, lane, peer, data, bytes});
  }
  void Wait(size_t lane) { steps_.push_back({Step::kWait, lane}); }
  void Do(int64_t count, int64_t block, Work work) {
    if (count <= 0) return;
    Step step;
    step.kind = Step::kWork;
    step.work = std::move(work);
    step.count = count;
    step.block = block;
    steps_.push_back(std::move(step));
  }
  // Executed as a whole.
  void Do(std::function<void()> work) {
    Do(1, 1, [work = std::move(work)](int64_t, int64_t) { work(); });
  }
  void Copy(void* to, const void* from, size_t bytes) {
    constexpr int64_t kBlock = 256 * 1024;
    if (to == from || bytes == 0) return;
    Do(static_cast<int64_t>(bytes), kBlock,
       [to = static_cast<char*>(to), from = static_cast<const char*>(from)](
           int64_t begin, int64_t count) {
         std::memcpy(to + begin, from + begin, static_cast<size_t>(count));
       });
    steps_.back().copies = true;
  }

  // Called for more steps when all are executed; returns false when none are
  // left.
  void ThenAsk(std::function<bool(P2PPlan*)> more) { more_ = std::move(more); }

  // The current step; null at the end.
  Step* Due() {
    while (steps_.empty() && more_ != nullptr) {
      if (!more_(this)) more_ = nullptr;
    }
    return steps_.empty() ? nullptr : &steps_.front();
  }
  void Done() {
    steps_.pop_front();
    ++done_;
  }
  // The fraction of the steps written so far that is done: 0 to 1.
  double part() const {
    const size_t all = done_ + steps_.size();
    return all == 0 ? 0 : static_cast<double>(done_) / static_cast<double>(all);
  }

 private:
  std::deque<Step> steps_;
  size_t done_ = 0;
  std::function<bool(P2PPlan*)> more_;
};

// Writes the plan of an operation, using the algorithm for its kind and size,
// the same on all ranks of the group. `runs` are its spans. Objects passed by
// reference must exist until the plan is finished, except `staging`, which is
// called before this returns.
void PlanByMessages(const OperationSpec& spec, const RankGroup& group,
                    const RankRuns& runs, const Staging& staging,
                    P2PPlan* plan);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_P2P_PLAN_H_
