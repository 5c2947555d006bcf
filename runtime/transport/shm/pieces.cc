#include "runtime/transport/shm/pieces.h"

#include "runtime/transport/shm/allreduce.h"
#include "runtime/transport/shm/gather.h"
#include "runtime/transport/shm/scatter.h"

namespace tf_hvd {

void ShmPieces::Gather(uint64_t /*piece*/, const ShmSlots& /*slots*/) {}

bool ShmPieces::Exchange(uint64_t /*piece*/, const ShmSlots& /*slots*/,
                         OperationSpec* /*spec*/) const {
  return false;
}

std::unique_ptr<ShmPieces> CutIntoPieces(const OperationSpec& spec, size_t me,
                                         size_t slot_bytes) {
  switch (spec.kind) {
    case OpKind::kAllreduce:
      return AllreducePieces(spec, me, slot_bytes);
    case OpKind::kBroadcast:
      return BroadcastPieces(spec, me, slot_bytes);
    case OpKind::kAllgather:
      return AllgatherPieces(spec, me, slot_bytes);
    case OpKind::kAlltoall:
      return AlltoallPieces(spec, me, slot_bytes);
    default:
      return ReducescatterPieces(spec, me, slot_bytes);
  }
}

}  // namespace tf_hvd
