// Reads the attributes of a collective's node, for the kernels of TensorFlow's
// executor and of XLA's compiler. Any thread.
#ifndef TF_HVD_KERNELS_ATTRIBUTES_H_
#define TF_HVD_KERNELS_ATTRIBUTES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "kernels/tf_compat.h"
#include "kernels/verdict.h"
#include "runtime/request/request.h"

namespace tf_hvd {

// Attributes that all collectives have.
struct CollectiveAttributes {
  int32_t set = kWorldSet;
  // The name by which ranks match calls: wire_name, which sets `named`, or the
  // node's name.
  std::string name;
  bool named = false;
  // True if the name is the op's name: all eager kernels of an op share it, and
  // the program did not choose it.
  bool unnamed = false;
  // Names of a group's tensors, in their order; may be empty.
  std::vector<std::string> member_names;
  int step_count = 0;
  int32_t root = -1;  // a rank of the world, for collectives with a root
  // The line of the program that made the node, as "train.py:88"; empty if
  // unknown.
  std::string source;
};

absl::Status ReadAttributes(tf::OpKernelConstruction* ctx,
                            CollectiveAttributes* attributes);

// Reads an attribute if the op has it.
template <typename T>
absl::Status ReadOptional(tf::OpKernelConstruction* ctx, const char* name,
                          T* value) {
  return ctx->HasAttr(name) ? ctx->GetAttr(name, value) : absl::OkStatus();
}

absl::Status ReadVerdict(tf::OpKernelConstruction* ctx, Verdict* verdict);

// Attributes of the reductions.
struct ReductionAttributes {
  ReduceOp reduce_op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  std::string compression;
  // The type that tensors are cast to for transport.
  std::optional<DType> wire;
  DType travels = DType::kFloat32;  // the type that is reduced
  // The error in the attributes, if any. It does not fail the construction: the
  // other ranks would wait for a call that never comes.
  Status valid;

  void Fill(Request* request) const;
};

absl::Status ReadReduction(tf::OpKernelConstruction* ctx,
                           ReductionAttributes* attributes);

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_ATTRIBUTES_H_
