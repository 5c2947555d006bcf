#include "runtime/execution/fusion_plan.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace tf_hvd {
namespace {

// A group of several types is several reductions: it stays alone. On a GPU
// others add, in an order that depends on how many elements there are, and what
// is in a batch depends on time.
bool Fusable(const Task& run) {
  const auto& tensors = run.request->tensors;
  return run.request->device == DeviceKind::kCpu && run.error.empty() &&
         run.request->kind == OpKind::kAllreduce && !tensors.empty() &&
         std::all_of(tensors.begin(), tensors.end(),
                     [&](const TensorSpec& tensor) {
                       return tensor.dtype == tensors[0].dtype;
                     });
}

auto FusionKey(const Task& run) {
  const Request& request = *run.request;
  return std::make_tuple(run.key.first, request.tensors[0].dtype,
                         request.reduce_op, request.prescale, request.postscale,
                         request.device);
}

}  // namespace

std::vector<std::vector<size_t>> PlanFusion(const std::vector<Task>& batch,
                                            int64_t threshold) {
  struct Open {
    size_t list;
    int64_t bytes;
  };
  std::map<decltype(FusionKey(batch[0])), Open> open;
  std::vector<std::vector<size_t>> plan;
  for (size_t i = 0; i < batch.size(); ++i) {
    if (threshold <= 0 || !Fusable(batch[i])) {
      plan.push_back({i});
      continue;
    }
    const int64_t bytes = TotalBytes(*batch[i].request);
    const auto key = FusionKey(batch[i]);
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
