// CollectiveKernel: the common base of all collectives' kernels. It turns
// TensorFlow's context into an Entry for the default runtime, and TensorFlow's
// `done` into the entry's completion.
//
// ComputeAsync may be called on any number of threads at a time, also for one
// kernel (iterations of a loop). It never waits for other ranks, but the
// runtime may complete this call, or others, before it returns. `done` runs on
// the thread that completes the entry.
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

// One run of a kernel, until it has become a request.
struct Call {
  // References to the tensors that own the entry's memory.
  using HeldTensors = std::vector<tf::Tensor>;

  // Lives until the entry is completed or the caller has left.
  tf::OpKernelContext* ctx = nullptr;
  std::shared_ptr<CallerState> caller;
  const Runtime* runtime = nullptr;
  Membership membership;
  Entry entry;
  // Owned by Entry::keepalive, if necessary beyond the completion.
  std::shared_ptr<HeldTensors> held;
  // The outputs that Entry::allocate makes, indexed by tensor.
  std::shared_ptr<std::vector<RowsOutput>> rows;
  // Work that is left when the request has succeeded, before TensorFlow is
  // notified. It gets the completion's value, is skipped if the caller has
  // left, and must not refer to the call.
  std::function<Status(int32_t value)> finish;
};

class CollectiveKernel : public tf::AsyncOpKernel {
 public:
  void ComputeAsync(tf::OpKernelContext* ctx, DoneCallback done) final;

  // TensorFlow's executor starts it immediately on the same thread, before the
  // next "expensive" kernel. Otherwise it would be queued behind the remaining
  // computation, and its transfer would not overlap with any of it.
  bool IsExpensive() final { return false; }

 protected:
  // Reads the attributes that all collectives have. Each call's request gets
  // `kind`.
  CollectiveKernel(tf::OpKernelConstruction* ctx, OpKind kind);

  // Fills in the tensors, the outputs and the fields specific to the
  // collective. The entry already has its name, set, request.kind and root. An
  // error concerns only this rank and is reported to the others as a local
  // error of the call.
  virtual Status FillEntry(Call* call) = 0;

  // Memory for the result of a tensor.
  enum class Output {
    kSameShape,  // the input's memory if TensorFlow allows it, else new
    kInput,      // the input itself, which the runtime must not write to
    kLater,      // allocated by Entry::allocate, or by the caller
  };

  // Adds input `index` to the request and the buffers, and sets output `index`.
  Status AddTensor(Call* call, int index, Output output) const;

  // Adds input `index`, which may have a different number of rows on other
  // ranks. Entry::allocate makes output `index` once the number of rows from
  // each rank is known. A scalar is an error.
  Status AddRows(Call* call, int index) const;

  // Fails if the most recently added tensor is a scalar.
  Status CheckHasRows(const Call& call) const;

  // Adds one tensor's memory; sets the member's name in `spec`.
  void Add(Call* call, TensorSpec spec, const Span& memory) const;

  // Number of inputs that are tensors of the collective: all but the step (and
  // alltoall's splits).
  int TensorCount(const Call& call) const;

  // Whether this rank is the call's root.
  static bool IsRoot(const Call& call) {
    return call.runtime->topology().rank == call.entry.request.root;
  }

  OpKind kind() const { return kind_; }
  int32_t set() const { return attributes_.set; }
  // Names of a group's tensors, in their order; may be empty.
  const std::vector<std::string>& member_names() const {
    return attributes_.member_names;
  }

 private:
  // The name by which ranks match calls.
  std::string WireName(const tf::OpKernelContext& ctx) const;
  Status Fill(Call* call);
  // The caller's step: the last input of ops that take one.
  Status ReadStep(Call* call) const;

  const OpKind kind_;
  const bool on_gpu_;
  // An eager call has no name in its node: Python passes the caller's name
  // through the C API.
  CollectiveAttributes attributes_;
};

// Registers a collective's kernel for CPU and GPU tensors when the library is
// loaded, as REGISTER_KERNEL_BUILDER would. `on_host`: arguments that stay in
// host memory on GPUs as well.
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
