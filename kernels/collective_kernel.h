// CollectiveKernel: what the kernels of all collectives share. It turns
// TensorFlow's context into an Entry for the default runtime and TensorFlow's
// `done` into the entry's completion.
//
// ComputeAsync may be called on any number of threads at a time, for one
// kernel too (iterations of a loop). It never waits for other ranks, but the
// runtime may complete the call, or others, before it returns. `done` runs on
// whichever thread completes the entry.
#ifndef TF_HVD_KERNELS_COLLECTIVE_KERNEL_H_
#define TF_HVD_KERNELS_COLLECTIVE_KERNEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/tf_compat.h"
#include "runtime/c_api.h"
#include "runtime/entry.h"
#include "runtime/runtime.h"
#include "runtime/status.h"

namespace tf_hvd {

// References to the tensors whose memory an entry points into; Entry::keepalive
// owns them.
using HeldTensors = std::vector<tf::Tensor>;

class CollectiveKernel : public tf::AsyncOpKernel {
 public:
  void ComputeAsync(tf::OpKernelContext* ctx, DoneCallback done) final;

 protected:
  // Reads the attributes that all collectives have. `kind` goes into the
  // record of each call.
  CollectiveKernel(tf::OpKernelConstruction* ctx, OpKind kind);

  // Fills in the tensors, the outputs and what is particular to the
  // collective. `entry` has its name, set and record.kind. An error is wrong
  // on this rank alone and is told to the others as a refusal of the call.
  virtual Status FillEntry(tf::OpKernelContext* ctx, const Runtime& runtime,
                           const std::shared_ptr<HeldTensors>& held,
                           Entry* entry) = 0;

  // Where the result of a tensor goes.
  enum class Output {
    kSameShape,  // the input's memory where TensorFlow lets us have it, else
                 // new
    kInput,      // the input itself; the runtime must not write there
    kLater,      // Entry::allocate gives it
  };

  // Adds input `index` to the record and the buffers, and sets output `index`.
  static Status AddTensor(tf::OpKernelContext* ctx, int index, Output output,
                          HeldTensors* held, Entry* entry);

  int32_t set() const { return set_; }

 private:
  // The name that ranks match calls by.
  std::string WireName(const tf::OpKernelContext& ctx) const;

  const OpKind kind_;
  int32_t set_ = kWorldSet;
  std::string name_;
  // An eager call: all kernels of one op have one name, so that Python hands
  // over the caller's through the C API.
  bool eager_ = false;
};

// The error of a call that names a process set that does not exist.
Status UnknownSet(int32_t set);

// Ok if this rank can take part in collectives of `set`. Nobody could be told
// of a failure of this kind: it stays on this rank.
Status CheckSet(const Runtime& runtime, int32_t set);

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_COLLECTIVE_KERNEL_H_
