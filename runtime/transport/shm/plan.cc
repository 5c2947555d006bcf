#include "runtime/transport/shm/plan.h"

#include "runtime/transport/shm/allreduce.h"
#include "runtime/transport/shm/gather.h"
#include "runtime/transport/shm/scatter.h"

namespace tf_hvd {

void ShmPlan::Gather(uint64_t /*piece*/, const ShmSlots& /*slots*/) {}

bool ShmPlan::Exchange(uint64_t /*piece*/, const ShmSlots& /*slots*/,
                       OperationSpec* /*spec*/) const {
  return false;
}

std::unique_ptr<ShmPlan> PlanInShm(const OperationSpec& spec, size_t me,
                                   size_t slot_bytes) {
  switch (spec.kind) {
    case OpKind::kAllreduce:
      return PlanAllreduce(spec, me, slot_bytes);
    case OpKind::kBroadcast:
      return PlanBroadcast(spec, me, slot_bytes);
    case OpKind::kAllgather:
      return PlanAllgather(spec, me, slot_bytes);
    case OpKind::kAlltoall:
      return PlanAlltoall(spec, me, slot_bytes);
    default:
      return PlanReducescatter(spec, me, slot_bytes);
  }
}

}  // namespace tf_hvd
