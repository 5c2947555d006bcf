// Alltoall and reducescatter in pieces through shared memory: each rank's slot
// has a part for each of the others.
#ifndef TF_HVD_RUNTIME_TRANSPORT_SHM_SCATTER_H_
#define TF_HVD_RUNTIME_TRANSPORT_SHM_SCATTER_H_

#include <cstddef>
#include <memory>

#include "runtime/contract/operation.h"
#include "runtime/transport/shm/plan.h"

namespace tf_hvd {

// A rank knows what it sends and gets, and not what goes between others: with
// the first piece each tells how many pieces it needs.
std::unique_ptr<ShmPlan> PlanAlltoall(const OperationSpec& spec, size_t me,
                                      size_t slot_bytes);

// Each element is reduced in the order of the ranks.
std::unique_ptr<ShmPlan> PlanReducescatter(const OperationSpec& spec, size_t me,
                                           size_t slot_bytes);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_SHM_SCATTER_H_
