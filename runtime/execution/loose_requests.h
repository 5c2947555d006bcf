// LooseRequests: detects programs that reduce many small GPU tensors
// individually. They are not fused (executor.cc, Fusable), so each costs an
// NCCL call, which takes longer than moving its data.
//
// A step ends when a name is repeated. Called only by the holder of the
// progress lock.
#ifndef TF_HVD_RUNTIME_EXECUTION_LOOSE_REQUESTS_H_
#define TF_HVD_RUNTIME_EXECUTION_LOOSE_REQUESTS_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "runtime/request/request.h"

namespace tf_hvd {

class LooseRequests {
 public:
  // The number in one step from which to warn, and the size limit of a small
  // one.
  static constexpr size_t kMany = 32;
  static constexpr int64_t kSmallBytes = int64_t{1} << 20;

  // The warning for the user; empty, except once, at the first step with many.
  // `key`, `request`: the next in the agreed order.
  std::string Note(const Key& key, const Request& request) {
    if (told_ || !IsLoose(request)) return "";
    std::string text;
    if (names_.count(key) > 0) {
      if (names_.size() >= kMany) text = TextFor(names_.size());
      told_ = !text.empty();
      names_.clear();
    }
    // Names that are never repeated form no step.
    if (names_.size() < kMost && !told_) names_.insert(key);
    return text;
  }

 private:
  static constexpr size_t kMost = 10'000;

  static bool IsLoose(const Request& request) {
    return request.kind == OpKind::kAllreduce &&
           request.device == DeviceKind::kGpu && request.tensors.size() == 1 &&
           TotalBytes(request) <= kSmallBytes;
  }

  static std::string TextFor(size_t count) {
    return std::to_string(count) +
           " small tensors on a GPU are reduced individually in each step, "
           "with one NCCL call each. Use hvd.grouped_allreduce to reduce them "
           "in one call, as DistributedOptimizer and DistributedGradientTape "
           "do with gradients";
  }

  std::set<Key> names_;  // of the current step
  bool told_ = false;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EXECUTION_LOOSE_REQUESTS_H_
