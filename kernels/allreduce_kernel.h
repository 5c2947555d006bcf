// AllreduceKernel: HorovodAllreduce and HorovodGroupedAllreduce, which differ
// in the number of their inputs alone.
#ifndef TF_HVD_KERNELS_ALLREDUCE_KERNEL_H_
#define TF_HVD_KERNELS_ALLREDUCE_KERNEL_H_

#include <memory>

#include "kernels/collective_kernel.h"

namespace tf_hvd {

class AllreduceKernel : public CollectiveKernel {
 public:
  explicit AllreduceKernel(tf::OpKernelConstruction* ctx);

 protected:
  Status FillEntry(tf::OpKernelContext* ctx, const Runtime& runtime,
                   const std::shared_ptr<HeldTensors>& held,
                   Entry* entry) override;

 private:
  // Whether the operation exists and is possible for the type of the tensors;
  // both are attributes, so the answer is that of every call.
  Status Validate(int reduce_op, tf::DataType dtype);

  ReduceOp reduce_op_ = ReduceOp::kSum;
  double prescale_ = 1.0;
  double postscale_ = 1.0;
  Status valid_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_ALLREDUCE_KERNEL_H_
