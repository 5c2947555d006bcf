// Allgather and broadcast in pieces through shared memory.
#ifndef TF_HVD_RUNTIME_TRANSPORT_SHM_GATHER_H_
#define TF_HVD_RUNTIME_TRANSPORT_SHM_GATHER_H_

#include <cstddef>
#include <memory>

#include "runtime/contract/operation.h"
#include "runtime/transport/shm/plan.h"

namespace tf_hvd {

std::unique_ptr<ShmPlan> PlanBroadcast(const OperationSpec& spec, size_t me,
                                       size_t slot_bytes);

std::unique_ptr<ShmPlan> PlanAllgather(const OperationSpec& spec, size_t me,
                                       size_t slot_bytes);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_SHM_GATHER_H_
