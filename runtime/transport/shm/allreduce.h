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

// Every rank gives everything and reduces all by itself (short ones), or each
// reduces its slice of a piece and the others fetch the result.
std::unique_ptr<ShmPlan> PlanAllreduce(const OperationSpec& spec, size_t me,
                                       size_t slot_bytes);

// Who reduces what of a piece.
struct SliceRule {
  size_t owners;  // the first so many ranks have a slice each
  bool crosses;   // other nodes have their part of the results
};

// By slices, however short.
std::unique_ptr<ShmPlan> PlanSlicedAllreduce(const OperationSpec& spec,
                                             size_t me, size_t slot_bytes,
                                             const SliceRule& rule);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_SHM_ALLREDUCE_H_
