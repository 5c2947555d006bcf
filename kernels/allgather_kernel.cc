// HorovodAllgather and HorovodGroupedAllgather: the results are allocated once
// the first dimensions of all ranks are known.
#include "kernels/collective_kernel.h"

namespace tf_hvd {
namespace {

class AllgatherKernel final : public CollectiveKernel {
 public:
  explicit AllgatherKernel(tf::OpKernelConstruction* ctx)
      : CollectiveKernel(ctx, OpKind::kAllgather) {}

 private:
  Status FillEntry(Call* call) override {
    for (int i = 0; i < TensorCount(*call); ++i) {
      TF_HVD_RETURN_IF_ERROR(AddRows(call, i));
    }
    return Status::Ok();
  }
};

[[maybe_unused]] const bool allgather =
    RegisterKernel<AllgatherKernel>("HorovodAllgather");
[[maybe_unused]] const bool grouped_allgather =
    RegisterKernel<AllgatherKernel>("HorovodGroupedAllgather", {"stamp"});

}  // namespace
}  // namespace tf_hvd
