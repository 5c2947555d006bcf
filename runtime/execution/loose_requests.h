// LooseRequests: finds programs that reduce many small tensors of a GPU one by
// one. They are not fused there (executor.cc, Fusable), so each costs a call of
// NCCL, which takes longer than what it moves.
//
// A step has ended when a name comes again. Holder of the progress lock only.
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
  // Of a step that are worth a word, and what a small one has at most.
  static constexpr size_t kMany = 32;
  static constexpr int64_t kSmallBytes = int64_t{1} << 20;

  // What the user is to be told; empty, but for once, at the first step that
  // has many. `key`, `request`: the next in the agreed order.
  std::string Note(const Key& key, const Request& request) {
    if (told_ || !IsLoose(request)) return "";
    std::string text;
    if (names_.count(key) > 0) {
      if (names_.size() >= kMany) text = TextFor(names_.size());
      told_ = !text.empty();
      names_.clear();
    }
    // Names that never come again make no step.
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
           " small tensors on a GPU are reduced one by one in each step, a "
           "call of NCCL for each; hvd.grouped_allreduce reduces them in one "
           "call, as DistributedOptimizer and DistributedGradientTape do with "
           "gradients";
  }

  std::set<Key> names_;  // of the step so far
  bool told_ = false;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EXECUTION_LOOSE_REQUESTS_H_
