// StoreChoice: chooses between ordinary and streaming stores for a rank's
// writes to a slot (docs/adr/0024). The cheaper kind depends on the distance of
// the reader's core, which no machine reports reliably: a virtual one hides its
// caches, and migrates. So it is measured continuously: one write in kPeriod
// explores the other kind.
//
// The measure is the cost per byte of writing and reading together: streaming
// costs the writer more and the reader less. A reader's time covers the data of
// all other ranks, so the change of a single writer would hardly show.
// Therefore choices for the same pieces explore at the same pieces on all
// ranks.
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
  // Groups writes with comparable costs: one kind of operation, one type and
  // about one size. Writes of different groups are never compared.
  using Alike = uint32_t;

  // A prime, so that exploring does not always hit the same piece of an
  // operation.
  static constexpr uint64_t kPeriod = 199;

  // `offset`: position of the exploring write within a period, for choices that
  // must not explore at the same pieces.
  explicit StoreChoice(SlotStores rule, uint64_t offset = 0);

  // The kind of stores for the next write.
  Stores Next(Alike alike);

  // Adds the cost of such a write, in nanoseconds per byte.
  void Add(Alike alike, Stores stores, double cost);

  // The kind of stores for writes that do not explore.
  Stores current() const { return current_; }
  // The last cost of such writes before the last change; 0: unknown.
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
  Costs usual_;            // of writes with the current kind
  bool explores_ = false;  // the cost of an exploring write is still awaited
  double score_ = 1.0;     // explored writes relative to usual ones; recent
  double cost_ = 0;
  double cost_before_ = 0;
  // After a change: the cost of the previous kind.
  Costs replaced_;
  int trial_ = 0;            // samples still to be compared with it
  uint64_t trial_ends_ = 0;  // writes until the comparison is given up
  double trial_ratios_ = 0;
  int trial_samples_ = 0;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_SHM_STORE_CHOICE_H_
