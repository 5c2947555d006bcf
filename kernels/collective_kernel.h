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

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/attributes.h"
#include "kernels/local_checks.h"
#include "kernels/pending_call.h"
#include "kernels/tf_compat.h"
#include "runtime/api/c_api.h"
#include "runtime/api/runtime.h"
#include "runtime/request/entry.h"

namespace tf_hvd {

struct RowsOutput;

// One run of a kernel, while it is being turned into a request.
struct Call {
  // References to the tensors whose memory the entry points into.
  using HeldTensors = std::vector<tf::Tensor>;

  // Lives until the entry is completed, or the caller has gone.
  tf::OpKernelContext* ctx = nullptr;
  std::shared_ptr<CallerState> caller;
  const Runtime* runtime = nullptr;
  Membership membership;
  Entry entry;
  // Entry::keepalive owns them, longer than until the completion if need be.
  std::shared_ptr<HeldTensors> held;
  // The outputs that Entry::allocate makes, by tensor.
  std::shared_ptr<std::vector<RowsOutput>> rows;
  // What is left to do when the request has succeeded, before TensorFlow is
  // told; it gets the completion's value. Not done if the caller has gone. Must
  // not refer to the call.
  std::function<Status(int32_t value)> finish;
};

class CollectiveKernel : public tf::AsyncOpKernel {
 public:
  void ComputeAsync(tf::OpKernelContext* ctx, DoneCallback done) final;

  // TensorFlow's executor starts it at once, where it is, before the next
  // "expensive" kernel. Otherwise it would be put behind what else is to be
  // computed, and travel when there is nothing left to hide it behind.
  bool IsExpensive() final { return false; }

 protected:
  // Reads the attributes that all collectives have. `kind` goes into the
  // request of each call.
  CollectiveKernel(tf::OpKernelConstruction* ctx, OpKind kind);

  // Fills in the tensors, the outputs and what is particular to the
  // collective. The entry has its name, set, request.kind and root. An error is
  // wrong on this rank alone and is told to the others as a local error of the
  // call.
  virtual Status FillEntry(Call* call) = 0;

  // Where the result of a tensor goes.
  enum class Output {
    kSameShape,  // the input's memory where TensorFlow lets us have it, else
                 // new
    kInput,      // the input itself; the runtime must not write there
    kLater,      // Entry::allocate gives it, or the caller
  };

  // Adds input `index` to the request and the buffers, and sets output `index`.
  Status AddTensor(Call* call, int index, Output output) const;

  // Adds input `index`, of which other ranks may have more rows or fewer;
  // Entry::allocate makes output `index` when it is known how many rows come
  // from each. A scalar is an error.
  Status AddRows(Call* call, int index) const;

  // An error if the tensor that was added last is a scalar.
  Status CheckHasRows(const Call& call) const;

  // Adds one tensor's memory; `spec` gets the member's name.
  void Add(Call* call, TensorSpec spec, const Span& memory) const;

  // How many inputs are tensors of the collective: all but the step (of
  // alltoall: and but the splits).
  int TensorCount(const Call& call) const;

  // Whether this rank is the call's root.
  static bool IsRoot(const Call& call) {
    return call.runtime->topology().rank == call.entry.request.root;
  }

  OpKind kind() const { return kind_; }
  int32_t set() const { return attributes_.set; }
  // Of the tensors of a group, in their order; or none.
  const std::vector<std::string>& member_names() const {
    return attributes_.member_names;
  }

 private:
  // The name that ranks match calls by.
  std::string WireName(const tf::OpKernelContext& ctx) const;
  Status Fill(Call* call);
  // The caller's step, which is the last input of ops that take one.
  Status ReadStep(Call* call) const;

  const OpKind kind_;
  const bool on_gpu_;
  // Of an eager call, which has no name there, Python hands over the caller's
  // through the C API.
  CollectiveAttributes attributes_;
};

// Registers a collective's kernel for tensors of CPUs and of GPUs while the
// library is loaded, as REGISTER_KERNEL_BUILDER would. `on_host`: arguments
// that lie in the host's memory on GPUs as well.
template <typename Kernel>
bool RegisterKernel(const char* op,
                    std::initializer_list<const char*> on_host = {}) {
  for (const char* device : {tf::DEVICE_CPU, tf::DEVICE_GPU}) {
    tf::KernelDefBuilder builder(op);
    builder.Device(device);
    for (const char* argument : on_host) builder.HostMemory(argument);
    const tf::kernel_factory::OpKernelRegistrar registrar(
        builder.Build(), op,
        [](tf::OpKernelConstruction* ctx) -> tf::OpKernel* {
          return new Kernel(ctx);
        });
  }
  return true;
}

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_COLLECTIVE_KERNEL_H_
