// What the attributes of a collective's node say, for the kernels of
// TensorFlow's executor and for those of XLA's compiler. Any thread.
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

// Those that all collectives have.
struct CollectiveAttributes {
  int32_t set = kWorldSet;
  // What ranks match calls by: wire_name, which makes it `named`, or the node's
  // name.
  std::string name;
  bool named = false;
  // All kernels of one op that is called eagerly have the op's name, which
  // nobody chose.
  bool unnamed = false;
  // Of the tensors of a group, in their order; or none.
  std::vector<std::string> member_names;
  int step_count = 0;
  int32_t root = -1;  // what has one: a rank of the world
  // Which line of the program made the node, as "train.py:88"; empty if it is
  // not known.
  std::string source;
};

absl::Status ReadAttributes(tf::OpKernelConstruction* ctx,
                            CollectiveAttributes* attributes);

// An attribute, where the op has it.
template <typename T>
absl::Status ReadOptional(tf::OpKernelConstruction* ctx, const char* name,
                          T* value) {
  return ctx->HasAttr(name) ? ctx->GetAttr(name, value) : absl::OkStatus();
}

absl::Status ReadVerdict(tf::OpKernelConstruction* ctx, Verdict* verdict);

// Those of what reduces.
struct ReductionAttributes {
  ReduceOp reduce_op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  std::string compression;
  // What tensors are cast to on their way.
  std::optional<DType> wire;
  DType travels = DType::kFloat32;  // the type that is reduced
  // What is wrong with them. Not an error of the construction: the other ranks
  // would wait for a call that never comes.
  Status valid;

  void Fill(Request* request) const;
};

absl::Status ReadReduction(tf::OpKernelConstruction* ctx,
                           ReductionAttributes* attributes);

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_ATTRIBUTES_H_
