// HorovodAllreduce, HorovodReducescatter and their grouped forms: the
// collectives that reduce.
#include <cstdint>
#include <utility>
#include <vector>

#include "compute/buffer_ops.h"
#include "kernels/collective_kernel.h"
#include "kernels/tf_adapters.h"

namespace tf_hvd {
namespace {

// The common base of both kernels: the operation and its factors.
class ReductionKernel : public CollectiveKernel {
 protected:
  ReductionKernel(tf::OpKernelConstruction* ctx, OpKind kind);

  // Fills in the reduction, then the tensors. Tensors that are sent in another
  // type are cast here if they are in host memory, and while being packed on a
  // GPU.
  Status FillEntry(Call* call) final;

  // Adds input `index` and its output.
  virtual Status AddReduced(Call* call, int index) const = 0;

 private:
  Status Cast(Call* call) const;

  ReductionAttributes reduction_;
  Status valid_;
};

// Memory for `count` 16-bit numbers, owned by the call.
Status NewHalves(Call* call, int64_t count, void** memory) {
  tf::Tensor halves;
  TF_HVD_RETURN_IF_ERROR(FromTensorFlow(call->ctx->allocate_temp(
      tf::DT_HALF, tf::TensorShape({count}), &halves)));
  *memory = halves.data();
  call->held->push_back(halves);
  return Status::Ok();
}

ReductionKernel::ReductionKernel(tf::OpKernelConstruction* ctx, OpKind kind)
    : CollectiveKernel(ctx, kind) {
  OP_REQUIRES_OK(ctx, ReadReduction(ctx, &reduction_));
  valid_ = reduction_.valid;
  if (!valid_.ok()) return;
  valid_ = CheckReducible(kind, reduction_.reduce_op, reduction_.travels);
}

Status ReductionKernel::FillEntry(Call* call) {
  TF_HVD_RETURN_IF_ERROR(valid_);
  reduction_.Fill(&call->entry.request);
  for (int i = 0; i < TensorCount(*call); ++i) {
    TF_HVD_RETURN_IF_ERROR(AddReduced(call, i));
  }
  return reduction_.wire.has_value() ? Cast(call) : Status::Ok();
}

Status ReductionKernel::Cast(Call* call) const {
  Entry& entry = call->entry;
  for (TensorSpec& spec : entry.request.tensors) spec.dtype = *reduction_.wire;
  if (entry.request.device == DeviceKind::kGpu) {
    entry.stored = DType::kFloat32;
    return Status::Ok();
  }
  // Tensors to cast back: source, destination, number of elements.
  std::vector<Span> results;
  for (size_t i = 0; i < entry.tensors.size(); ++i) {
    Span& tensor = entry.tensors[i];
    void* narrow = nullptr;
    TF_HVD_RETURN_IF_ERROR(NewHalves(call, tensor.count, &narrow));
    StoreAccumulator(*reduction_.wire, narrow, tensor.input, tensor.count, 1.0);
    void* result = narrow;
    const int64_t count =
        call->ctx->mutable_output(static_cast<int>(i))->NumElements();
    if (YieldOf(kind()) == Yield::kOwnRows) {
      TF_HVD_RETURN_IF_ERROR(NewHalves(call, count, &result));
    }
    results.push_back({result, tensor.output, count});
    tensor.input = narrow;
    tensor.output = result;
  }
  call->finish = [wire = *reduction_.wire, results = std::move(results),
                  held = call->held](int32_t) {
    for (const Span& result : results) {
      LoadAccumulator(wire, result.output, result.input, result.count, 1.0);
    }
    return Status::Ok();
  };
  return Status::Ok();
}

// HorovodAllreduce and HorovodGroupedAllreduce, which differ only in the number
// of their inputs.
class AllreduceKernel final : public ReductionKernel {
 public:
  explicit AllreduceKernel(tf::OpKernelConstruction* ctx)
      : ReductionKernel(ctx, OpKind::kAllreduce) {}

 private:
  Status AddReduced(Call* call, int index) const override {
    return AddTensor(call, index, Output::kSameShape);
  }
};

[[maybe_unused]] const bool allreduce =
    RegisterKernel<AllreduceKernel>("HorovodAllreduce");
[[maybe_unused]] const bool grouped_allreduce =
    RegisterKernel<AllreduceKernel>("HorovodGroupedAllreduce", {"stamp"});

// HorovodReducescatter and HorovodGroupedReducescatter, which differ only in
// the number of their inputs.
class ReducescatterKernel final : public ReductionKernel {
 public:
  explicit ReducescatterKernel(tf::OpKernelConstruction* ctx)
      : ReductionKernel(ctx, OpKind::kReducescatter) {}

 private:
  Status AddReduced(Call* call, int index) const override {
    TF_HVD_RETURN_IF_ERROR(AddTensor(call, index, Output::kLater));
    TF_HVD_RETURN_IF_ERROR(CheckHasRows(*call));
    // All ranks must have the same rows, so this rank's share is already known.
    tf::TensorShape shape = call->ctx->input(index).shape();
    shape.set_dim(0, ScatteredRows(shape.dim_size(0), call->membership.ranks,
                                   call->membership.place));
    tf::Tensor* result = nullptr;
    TF_HVD_RETURN_IF_ERROR(
        FromTensorFlow(call->ctx->allocate_output(index, shape, &result)));
    call->entry.tensors.back().output = result->data();
    call->held->push_back(*result);
    return Status::Ok();
  }
};

[[maybe_unused]] const bool reducescatter =
    RegisterKernel<ReducescatterKernel>("HorovodReducescatter");
[[maybe_unused]] const bool grouped_reducescatter =
    RegisterKernel<ReducescatterKernel>("HorovodGroupedReducescatter");

}  // namespace
}  // namespace tf_hvd
