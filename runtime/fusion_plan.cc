#include "runtime/fusion_plan.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace tf_hvd {
namespace {

// A group of several types is several reductions: it stays alone.
bool Fusable(const Run& run) {
  const auto& tensors = run.record.tensors;
  return run.error.empty() && run.record.kind == OpKind::kAllreduce &&
         !tensors.empty() &&
         std::all_of(tensors.begin(), tensors.end(),
                     [&](const TensorSpec& tensor) {
                       return tensor.dtype == tensors[0].dtype;
                     });
}

auto FusionKey(const Run& run) {
  const Record& record = run.record;
  return std::make_tuple(run.set, record.tensors[0].dtype, record.reduce_op,
                         record.prescale, record.postscale, record.device);
}

}  // namespace

std::vector<std::vector<size_t>> PlanFusion(const std::vector<Run>& frame,
                                            int64_t threshold) {
  struct Open {
    size_t list;
    int64_t bytes;
  };
  std::map<decltype(FusionKey(frame[0])), Open> open;
  std::vector<std::vector<size_t>> plan;
  for (size_t i = 0; i < frame.size(); ++i) {
    if (threshold <= 0 || !Fusable(frame[i])) {
      plan.push_back({i});
      continue;
    }
    const int64_t bytes = TotalBytes(frame[i].record);
    const auto key = FusionKey(frame[i]);
    const auto it = open.find(key);
    if (it != open.end() && it->second.bytes + bytes <= threshold) {
      plan[it->second.list].push_back(i);
      it->second.bytes += bytes;
    } else {
      open[key] = {plan.size(), bytes};
      plan.push_back({i});
    }
  }
  return plan;
}

}  // namespace tf_hvd
