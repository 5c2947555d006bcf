// Allreduce in pieces through shared memory.
//
// Each element is reduced in the order of the ranks.
#ifndef TF_HVD_RUNTIME_TRANSPORT_SHM_ALLREDUCE_H_
#define TF_HVD_RUNTIME_TRANSPORT_SHM_ALLREDUCE_H_

#include <cstddef>
#include <memory>

#include "runtime/contract/operation.h"
#include "runtime/transport/shm/plan.h"

namespace tf_hvd {

// For short data every rank publishes all of it and reduces everything itself.
// Otherwise each rank reduces its slice of a piece and the others fetch the
// result.
std::unique_ptr<ShmPlan> PlanAllreduce(const OperationSpec& spec, size_t me,
                                       size_t slot_bytes);

// Which ranks reduce which part of a piece.
struct SliceRule {
  size_t owners;  // this many ranks, the first ones, have one slice each
  bool crosses;   // other nodes contribute to the results
};

// By slices, even if they are short.
std::unique_ptr<ShmPlan> PlanSlicedAllreduce(const OperationSpec& spec,
                                             size_t me, size_t slot_bytes,
                                             const SliceRule& rule);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_SHM_ALLREDUCE_H_
