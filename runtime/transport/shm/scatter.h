// Alltoall and reducescatter in pieces through shared memory: each rank's slot
// has a part for each other rank.
#ifndef TF_HVD_RUNTIME_TRANSPORT_SHM_SCATTER_H_
#define TF_HVD_RUNTIME_TRANSPORT_SHM_SCATTER_H_

#include <cstddef>
#include <memory>

#include "runtime/contract/operation.h"
#include "runtime/transport/shm/plan.h"

namespace tf_hvd {

// A rank knows the sizes that it sends and receives, but not those between
// other ranks. So with the first piece each rank publishes the number of pieces
// that it needs.
std::unique_ptr<ShmPlan> PlanAlltoall(const OperationSpec& spec, size_t me,
                                      size_t slot_bytes);

// Each element is reduced in the order of the ranks.
std::unique_ptr<ShmPlan> PlanReducescatter(const OperationSpec& spec, size_t me,
                                           size_t slot_bytes);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_SHM_SCATTER_H_
