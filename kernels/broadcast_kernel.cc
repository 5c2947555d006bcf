// HorovodBroadcast: the root's input is its output, without a copy.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kernels/collective_kernel.h"

namespace tf_hvd {
namespace {

class BroadcastKernel : public CollectiveKernel {
 public:
  explicit BroadcastKernel(tf::OpKernelConstruction* ctx)
      : CollectiveKernel(ctx, OpKind::kBroadcast) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("root_rank", &root_));
  }

 protected:
  Status FillEntry(tf::OpKernelContext* ctx, const Runtime& runtime,
                   const std::shared_ptr<HeldTensors>& held,
                   Entry* entry) override {
    TF_HVD_RETURN_IF_ERROR(CheckRoot(runtime));
    entry->record.root = root_;
    // What the others put in is not used, so that their result may take its
    // place.
    const bool is_root = runtime.topology().rank == root_;
    return AddTensor(ctx, 0, is_root ? Output::kInput : Output::kSameShape,
                     held.get(), entry);
  }

 private:
  Status CheckRoot(const Runtime& runtime) const {
    if (set() == kWorldSet) {
      const int size = runtime.topology().size;
      if (root_ >= 0 && root_ < size) return Status::Ok();
      return InvalidArgument("there is no rank " + std::to_string(root_) +
                             "; root_rank must be 0 " +
                             (size > 1 ? "to " + std::to_string(size - 1)
                                       : "in a job of one rank"));
    }
    const std::vector<int> ranks = runtime.SetRanks(set());
    if (std::binary_search(ranks.begin(), ranks.end(), root_)) {
      return Status::Ok();
    }
    return InvalidArgument(
        "root_rank " + std::to_string(root_) + " is not in process set " +
        std::to_string(set()) +
        "; it is a rank of the whole job that is a member of the set");
  }

  int32_t root_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("HorovodBroadcast").Device(tf::DEVICE_CPU),
                        BroadcastKernel);

}  // namespace
}  // namespace tf_hvd
