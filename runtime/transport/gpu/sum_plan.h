// Sums over ranks if the transport between GPUs only moves bytes
// (mpi_communicator.h). Each rank receives the other ranks' data for its part
// and adds it, in the order of the ranks, by a kernel of compute/device_sums.h.
// If all ranks need the whole result, it then sends the sum to all. Half
// precisions are added in float32. Pure, as plan.h.
//
// Sums do not depend on how tensors are divided or placed: all ranks and all
// runs have the same bits.
#ifndef TF_HVD_RUNTIME_TRANSPORT_GPU_SUM_PLAN_H_
#define TF_HVD_RUNTIME_TRANSPORT_GPU_SUM_PLAN_H_

#include <cstddef>
#include <vector>

#include "runtime/contract/operation.h"
#include "runtime/transport/gpu/plan.h"

namespace tf_hvd {

// Whether it is a sum or an average of numbers.
bool IsSum(const OperationSpec& spec);

// For several ranks, and for an operation for which IsSum is true.
std::vector<GpuStep> PlanSum(const OperationSpec& spec, size_t me,
                             const GpuStaging& staging);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_SUM_PLAN_H_
