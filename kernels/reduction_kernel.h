// ReductionKernel: what the kernels of the collectives that compute something
// share: the operation and its factors.
#ifndef TF_HVD_KERNELS_REDUCTION_KERNEL_H_
#define TF_HVD_KERNELS_REDUCTION_KERNEL_H_

#include <string>

#include "kernels/collective_kernel.h"

namespace tf_hvd {

class ReductionKernel : public CollectiveKernel {
 protected:
  ReductionKernel(tf::OpKernelConstruction* ctx, OpKind kind);

  // Fills in the reduction, then the tensors.
  Status FillEntry(Call* call) final;

  // Adds input `index` and its output.
  virtual Status AddReduced(Call* call, int index) const = 0;

 private:
  // Whether the operation exists and is possible for the type of the tensors;
  // both are attributes, so the answer is that of every call.
  Status Validate(int reduce_op, tf::DataType dtype);

  ReduceOp reduce_op_ = ReduceOp::kSum;
  double prescale_ = 1.0;
  double postscale_ = 1.0;
  std::string compression_;
  Status valid_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_REDUCTION_KERNEL_H_
