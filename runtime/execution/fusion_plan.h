// FusionPlan: which requests of one batch are executed as one operation (stage
// 6). Pure, and the same on all ranks because the batch is.
#ifndef TF_HVD_RUNTIME_EXECUTION_FUSION_PLAN_H_
#define TF_HVD_RUNTIME_EXECUTION_FUSION_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/request/entry.h"

namespace tf_hvd {

// Indices into `batch`, each once; every inner list is executed together, the
// lists in this order. Only allreduces of equal set, type, reduce operation
// and scales are put together, up to `threshold` bytes (0: never), looking
// past others that do not match. Requests of all other kinds run alone: a group
// of them is one request already.
std::vector<std::vector<size_t>> PlanFusion(const std::vector<Task>& batch,
                                            int64_t threshold);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EXECUTION_FUSION_PLAN_H_
