// Adasum on GPUs: the algorithm of p2p/adasum.h, with the same combinations of
// the same vectors, on one stream: vectors and scalar products go between pairs
// of ranks by NCCL's sends and receives, and what is computed is launches of
// compute/device_adasum.h. Pure, as plan.h.
//
// Scalar products are summed in another order than on the CPU, which depends on
// the tensors' sizes and the number of ranks alone.
#ifndef TF_HVD_RUNTIME_TRANSPORT_GPU_ADASUM_PLAN_H_
#define TF_HVD_RUNTIME_TRANSPORT_GPU_ADASUM_PLAN_H_

#include <cstddef>
#include <vector>

#include "runtime/transport/gpu/plan.h"
#include "runtime/transport/operation.h"

namespace tf_hvd {

bool IsAdasum(const OperationSpec& spec);

// True if the two vectors of each tensor, and its scalar products, fit into so
// much staging memory. A tensor is not cut; a group is, between tensors.
bool AdasumFits(const OperationSpec& spec, size_t staging_bytes);

// For several ranks. Those that are idle in a step of the tree make an empty
// call.
std::vector<GpuStep> PlanAdasum(const OperationSpec& spec, size_t me,
                                const GpuStaging& staging);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_ADASUM_PLAN_H_
