// ReductionKernel: what the kernels of the collectives that compute something
// share: the operation and its factors.
#ifndef TF_HVD_KERNELS_REDUCTION_KERNEL_H_
#define TF_HVD_KERNELS_REDUCTION_KERNEL_H_

#include <optional>
#include <string>

#include "kernels/collective_kernel.h"

namespace tf_hvd {

class ReductionKernel : public CollectiveKernel {
 protected:
  ReductionKernel(tf::OpKernelConstruction* ctx, OpKind kind);

  // Fills in the reduction, then the tensors, and casts them if they travel in
  // another type: here in the host's memory, on their way in a GPU's.
  Status FillEntry(Call* call) final;

  // Adds input `index` and its output.
  virtual Status AddReduced(Call* call, int index) const = 0;

 private:
  // `type`: of the tensors; afterwards, the one that they travel in.
  Status CastTo(const std::string& wire, DType* type);
  Status Cast(Call* call) const;

  // Whether the operation exists and is possible for the type that travels;
  // both are attributes, so the answer is that of every call.
  Status Validate(int reduce_op, DType type);

  ReduceOp reduce_op_ = ReduceOp::kSum;
  double prescale_ = 1.0;
  double postscale_ = 1.0;
  std::string compression_;
  std::optional<DType> wire_;
  Status valid_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_REDUCTION_KERNEL_H_
