// RootedKernel: what the kernels of all forms of broadcast share: the root.
#ifndef TF_HVD_KERNELS_ROOTED_KERNEL_H_
#define TF_HVD_KERNELS_ROOTED_KERNEL_H_

#include <cstdint>

#include "kernels/collective_kernel.h"

namespace tf_hvd {

class RootedKernel : public CollectiveKernel {
 protected:
  explicit RootedKernel(tf::OpKernelConstruction* ctx);

  // Fills in the root, then the tensors.
  Status FillEntry(Call* call) final;

  // Adds what this rank, which may be the root, sends or receives.
  virtual Status AddTensors(Call* call, bool is_root) const = 0;

 private:
  Status CheckRoot(const Runtime& runtime) const;

  int32_t root_ = 0;
};

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_ROOTED_KERNEL_H_
