#include "kernels/rooted_kernel.h"

#include <algorithm>
#include <string>
#include <vector>

namespace tf_hvd {

RootedKernel::RootedKernel(tf::OpKernelConstruction* ctx)
    : CollectiveKernel(ctx, OpKind::kBroadcast) {
  OP_REQUIRES_OK(ctx, ctx->GetAttr("root_rank", &root_));
}

Status RootedKernel::FillEntry(Call* call) {
  TF_HVD_RETURN_IF_ERROR(CheckRoot(*call->runtime));
  call->entry.request.root = root_;
  return AddTensors(call, call->runtime->topology().rank == root_);
}

Status RootedKernel::CheckRoot(const Runtime& runtime) const {
  if (set() == kWorldSet) {
    const int size = runtime.topology().size;
    if (root_ >= 0 && root_ < size) return Status::Ok();
    return InvalidArgument(
        "there is no rank " + std::to_string(root_) + "; root_rank must be 0 " +
        (size > 1 ? "to " + std::to_string(size - 1) : "in a job of one rank"));
  }
  // Null: it has been removed since the kernel looked.
  const SetMembers members = runtime.SetRanks(set());
  if (members != nullptr &&
      std::binary_search(members->begin(), members->end(), root_)) {
    return Status::Ok();
  }
  return InvalidArgument(
      "root_rank " + std::to_string(root_) + " is not in process set " +
      std::to_string(set()) +
      "; it is a rank of the whole job that is a member of the set");
}

}  // namespace tf_hvd
