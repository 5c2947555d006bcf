// Sums over ranks where what lies between GPUs moves bytes alone
// (mpi_communicator.h): each rank gets its part of what all others give, adds
// it, in the order of the ranks, by a kernel of compute/device_sums.h, and,
// where all ranks get the whole, gives the sum to all. Half precisions are
// added in float32. Pure, as plan.h.
//
// Sums do not depend on how tensors are cut, or lie: all ranks and all runs
// have the same bits.
#ifndef TF_HVD_RUNTIME_TRANSPORT_GPU_SUM_PLAN_H_
#define TF_HVD_RUNTIME_TRANSPORT_GPU_SUM_PLAN_H_

#include <cstddef>
#include <vector>

#include "runtime/contract/operation.h"
#include "runtime/transport/gpu/plan.h"

namespace tf_hvd {

// Sums and averages of numbers.
bool IsSum(const OperationSpec& spec);

// For several ranks: of an operation that IsSum.
std::vector<GpuStep> PlanSum(const OperationSpec& spec, size_t me,
                             const GpuStaging& staging);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_SUM_PLAN_H_
