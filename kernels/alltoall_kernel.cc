// HorovodAlltoall: the result is allocated once the number of rows from each
// rank is known.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/collective_kernel.h"
#include "kernels/tf_adapters.h"

namespace tf_hvd {
namespace {

constexpr int kTensor = 0;
constexpr int kSplits = 1;

Status CheckSplits(const std::vector<int64_t>& splits, int64_t rows,
                   size_t ranks) {
  if (splits.size() != ranks) {
    return InvalidArgument(
        "splits has " + std::to_string(splits.size()) + " elements for " +
        std::to_string(ranks) +
        " ranks; pass one row count for each rank of the process set");
  }
  int64_t sum = 0;
  for (size_t i = 0; i < splits.size(); ++i) {
    if (splits[i] < 0) {
      return InvalidArgument("splits[" + std::to_string(i) + "] is " +
                             std::to_string(splits[i]) +
                             "; a row count cannot be negative");
    }
    sum += splits[i];
  }
  if (sum <= rows) return Status::Ok();
  return InvalidArgument("splits add up to " + std::to_string(sum) +
                         " rows, but the tensor has " + std::to_string(rows) +
                         "; send at most that many rows");
}

class AlltoallKernel final : public CollectiveKernel {
 public:
  explicit AlltoallKernel(tf::OpKernelConstruction* ctx)
      : CollectiveKernel(ctx, OpKind::kAlltoall) {}

 private:
  Status FillEntry(Call* call) override {
    TF_HVD_RETURN_IF_ERROR(AddRows(call, kTensor));
    TF_HVD_RETURN_IF_ERROR(ReadSplits(call));
    tf::Tensor* received = nullptr;
    const auto ranks = static_cast<int64_t>(call->membership.ranks);
    TF_HVD_RETURN_IF_ERROR(FromTensorFlow(
        call->ctx->allocate_output(kSplits, {ranks}, &received)));
    // A separate reference: the context may be gone before the call has ended.
    call->entry.allocate = [allocate = std::move(call->entry.allocate),
                            received = *received](
                               size_t tensor, const std::vector<int64_t>& rows,
                               void** output) mutable {
      std::copy(rows.begin(), rows.end(), received.flat<int32_t>().data());
      return allocate(tensor, rows, output);
    };
    return Status::Ok();
  }

  static Status ReadSplits(Call* call) {
    const tf::Tensor& splits = call->ctx->input(kSplits);
    if (splits.dims() != 1) {
      return InvalidArgument(
          "splits has " + std::to_string(splits.dims()) +
          " dimensions; pass one dimension with a row count for "
          "each rank, or an empty tensor");
    }
    std::vector<int64_t>* const result = &call->entry.rows;
    const int64_t rows = result->front();
    const size_t ranks = call->membership.ranks;
    if (splits.NumElements() == 0) return EvenSplits(rows, ranks, result);
    const auto values = splits.vec<int32_t>();
    result->assign(values.data(), values.data() + values.size());
    return CheckSplits(*result, rows, ranks);
  }
};

[[maybe_unused]] const bool alltoall = RegisterKernel<AlltoallKernel>(
    "HorovodAlltoall", {"splits", "received_splits"});

}  // namespace
}  // namespace tf_hvd
