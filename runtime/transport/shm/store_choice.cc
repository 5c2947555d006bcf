#include "runtime/transport/shm/store_choice.h"

#include <algorithm>
#include <utility>

namespace tf_hvd {
namespace {

// Number of samples from which a cost is known.
constexpr int kEnough = 4;
// Weight of a new cost, and its limit as a multiple of the usual cost: larger
// values mean that the rank lost its core during the write.
constexpr double kWeight = 0.125;
constexpr double kMostRatio = 2.0;
// The other kind is used immediately if its relative cost is at most this; a
// smaller gain must be seen more often. A gain of a tenth here does not make
// the operation faster, because streaming takes bandwidth from concurrent work.
constexpr double kClearGain = 0.7;
constexpr double kSomeGain = 0.8;
constexpr double kScoreWeight = 0.3;
// This many writes must then be cheaper on average, or the change is undone.
constexpr int kTrial = 8;
constexpr double kConfirmed = 0.85;

Stores Other(Stores stores) {
  return stores == Stores::kOrdinary ? Stores::kStreaming : Stores::kOrdinary;
}

}  // namespace

StoreChoice::StoreChoice(SlotStores rule, uint64_t offset)
    : rule_(HasStreamingStores() ? rule : SlotStores::kOrdinary),
      current_(rule_ == SlotStores::kStreaming ? Stores::kStreaming
                                               : Stores::kOrdinary),
      due_in_(2 * kEnough + offset % kPeriod) {}

Stores StoreChoice::Next(Alike alike) {
  if (rule_ == SlotStores::kAlternating) current_ = Other(current_);
  if (rule_ != SlotStores::kMeasured) return current_;
  if (due_in_ > 0) --due_in_;
  // The program may do something else now, without earlier measurements.
  if (trial_ > 0 && --trial_ends_ == 0) trial_ = 0;
  if (due_in_ > 0 || trial_ > 0 || !Knows(alike)) return current_;
  due_in_ = kPeriod;
  explores_ = true;
  return Other(current_);
}

bool StoreChoice::Knows(Alike alike) const {
  const auto found = usual_.find(alike);
  return found != usual_.end() && found->second.samples >= kEnough;
}

void StoreChoice::Add(Alike alike, Stores stores, double cost) {
  if (rule_ != SlotStores::kMeasured) return;
  if (stores != current_) {
    // Other writes were made before the last change.
    if (explores_ && Knows(alike)) Explored(cost / usual_[alike].cost);
    explores_ = false;
    return;
  }
  Usual& usual = usual_[alike];
  if (++usual.samples <= kEnough) {
    // The first writes to a slot also fault in its pages.
    usual.cost = usual.samples == 1 ? cost : std::min(usual.cost, cost);
  } else {
    const double most = usual.cost * kMostRatio;
    usual.cost += kWeight * (std::min(cost, most) - usual.cost);
  }
  cost_ = usual.cost;
  const auto before = replaced_.find(alike);
  if (trial_ == 0 || before == replaced_.end()) return;
  trial_ratios_ += std::min(cost / before->second.cost, kMostRatio);
  ++trial_samples_;
  if (--trial_ == 0) Judge();
}

void StoreChoice::Explored(double ratio) {
  score_ += kScoreWeight * (std::min(ratio, kMostRatio) - score_);
  if (ratio > kClearGain && score_ > kSomeGain) return;
  Change();
  trial_ = kTrial;
  trial_ends_ = kPeriod;
}

void StoreChoice::Change() {
  current_ = Other(current_);
  cost_before_ = cost_;
  score_ = 1.0;
  std::swap(usual_, replaced_);
  usual_.clear();
  trial_ = 0;
  trial_ratios_ = 0;
  trial_samples_ = 0;
}

void StoreChoice::Judge() {
  const double ratio = trial_ratios_ / trial_samples_;
  if (ratio <= kConfirmed) return;
  const Costs known = replaced_;
  Change();
  usual_ = known;
}

}  // namespace tf_hvd
