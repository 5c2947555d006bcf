// StoreChoice: whether a rank writes to a slot by ordinary or by streaming
// stores (docs/adr/0024). Which is cheaper depends on how far the reader's core
// is, which no machine tells reliably: a virtual one hides its caches, and
// moves. So it is measured, all the time: one write in kPeriod explores the
// other way.
//
// What is compared is what writing and reading a byte cost together: the writer
// pays for streaming, the reader gains. A reader's time is that of what all
// others have written, of which one alone would show little: choices that are
// made of the same pieces explore at the same ones, on all ranks.
//
// Not thread-safe; pure.
#ifndef TF_HVD_RUNTIME_TRANSPORT_SHM_STORE_CHOICE_H_
#define TF_HVD_RUNTIME_TRANSPORT_SHM_STORE_CHOICE_H_

#include <cstdint>
#include <map>

#include "base/config.h"
#include "compute/streaming.h"

namespace tf_hvd {

class StoreChoice {
 public:
  // Writes that cost alike if they are made alike: of one kind of operation,
  // one type and about one size. Others are never compared.
  using Alike = uint32_t;

  // A prime: the same piece of an operation is not explored each time.
  static constexpr uint64_t kPeriod = 199;

  // `offset`: when it explores within a period, for those that must not at the
  // same pieces.
  explicit StoreChoice(SlotStores rule, uint64_t offset = 0);

  // How the next write is made.
  Stores Next(Alike alike);

  // What a write that was made so has cost: nanoseconds a byte.
  void Add(Alike alike, Stores stores, double cost);

  // How writes are made that do not explore.
  Stores current() const { return current_; }
  // The latest cost of such writes before the last change; 0: not known.
  double cost_before() const { return cost_before_; }

 private:
  struct Usual {
    double cost = 0;
    int samples = 0;
  };
  using Costs = std::map<Alike, Usual>;

  bool Knows(Alike alike) const;
  void Explored(double ratio);
  void Change();
  void Judge();

  const SlotStores rule_;
  Stores current_;
  uint64_t due_in_;        // writes until one explores
  Costs usual_;            // of writes that are made the current way
  bool explores_ = false;  // a write that did is still to be told
  double score_ = 1.0;     // explored writes by usual ones; lately
  double cost_ = 0;
  double cost_before_ = 0;
  // After a change: what the other way cost.
  Costs replaced_;
  int trial_ = 0;            // samples still to be compared with it
  uint64_t trial_ends_ = 0;  // writes until they are not waited for any more
  double trial_ratios_ = 0;
  int trial_samples_ = 0;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_SHM_STORE_CHOICE_H_
