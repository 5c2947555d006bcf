#include "runtime/transport/p2p/backend.h"

#include <algorithm>
#include <string>
#include <utility>

#include "compute/buffer_ops.h"
#include "runtime/contract/rank_group.h"
#include "runtime/transport/p2p/operation.h"

namespace tf_hvd {
namespace {

Status CheckReducible(OpKind kind, const ReduceOptions& options) {
  if (kind == OpKind::kAllreduce && options.op == ReduceOp::kAdasum &&
      IsFloating(options.dtype)) {
    return Status::Ok();
  }
  if (IsReducible(options.dtype, options.op)) return Status::Ok();
  return Internal(std::string("bug in tf_hvd: unsupported reduction ") +
                  NameOf(options.op) + " of " + NameOf(options.dtype));
}

// Blocks of memory kept for later operations; usually as many as are in
// progress at once.
constexpr size_t kKept = 4;

}  // namespace

bool P2PBackend::Serves(const OperationSpec& spec) const {
  return spec.memory.kind != MemoryKind::kDevice;
}

Status P2PBackend::Make(OperationSpec spec,
                        std::unique_ptr<Operation>* operation) {
  size_t me = 0;
  TF_HVD_RETURN_IF_ERROR(FindPlace(spec, rank_, &me));
  if (Reduces(spec.kind)) {
    TF_HVD_RETURN_IF_ERROR(CheckReducible(spec.kind, spec.reduce));
  }
  *operation = std::make_unique<P2POperation>(this, std::move(spec), me);
  return Status::Ok();
}

P2PBackend::Block P2PBackend::Take(size_t bytes) {
  const auto enough = [bytes](const Block& block) {
    return block.bytes >= bytes;
  };
  const auto found = std::find_if(free_.begin(), free_.end(), enough);
  Block block;
  if (found != free_.end()) {
    block = std::move(*found);
    free_.erase(found);
  } else {
    free_.clear();  // too small: later operations are usually no smaller
    block.memory.reset(new char[bytes]);
    block.bytes = bytes;
  }
  return block;
}

void P2PBackend::GiveBack(Block block) {
  if (free_.size() < kKept) free_.push_back(std::move(block));
}

}  // namespace tf_hvd
