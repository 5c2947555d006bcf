// All forms of broadcast.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/collective_kernel.h"
#include "kernels/tf_adapters.h"

namespace tf_hvd {
namespace {

// HorovodBroadcast: the root's input is its output, without a copy.
class BroadcastKernel final : public CollectiveKernel {
 public:
  explicit BroadcastKernel(tf::OpKernelConstruction* ctx)
      : CollectiveKernel(ctx, OpKind::kBroadcast) {}

 private:
  Status FillEntry(Call* call) override {
    // The inputs of the other ranks are not used, so their results may reuse
    // the inputs' memory.
    return AddTensor(call, 0,
                     IsRoot(*call) ? Output::kInput : Output::kSameShape);
  }
};

[[maybe_unused]] const bool broadcast =
    RegisterKernel<BroadcastKernel>("HorovodBroadcast");

// HorovodBroadcastInplace and HorovodBroadcastInplaceResource: the variables of
// a call form one request and are written in place.
//
// No lock is held during the transfer. Values are received in memory that only
// the variable refers to, or in new memory that it gets in the end. A reference
// to the memory is held meanwhile, so TensorFlow copies the value before it
// writes to the variable. Such a write during the call is lost.
// A variable for the duration of a call.
class Variable {
 public:
  virtual ~Variable() = default;

  // Its value. If the variable will be `written`: memory of that type and shape
  // that may be overwritten.
  virtual Status Take(tf::OpKernelContext* ctx, bool written,
                      tf::Tensor* tensor) = 0;

  // Assigns the tensor from Take to the variable.
  virtual void Put(const tf::Tensor& tensor) = 0;
};

Status NoValue() {
  return InvalidArgument(
      "it has no value on this rank: it was not initialized or was deleted; "
      "initialize it first");
}

class ResourceVariable final : public Variable {
 public:
  explicit ResourceVariable(tf::core::RefCountPtr<tf::Var> var)
      : var_(std::move(var)) {}

  Status Take(tf::OpKernelContext* ctx, bool written,
              tf::Tensor* tensor) override {
    const tf::mutex_lock lock(*var_->mu());
    const tf::Tensor& value = *var_->tensor();
    if (!var_->is_initialized || !value.IsInitialized()) return NoValue();
    if (!written || value.RefCountIsOne()) {
      *tensor = value;
      return Status::Ok();
    }
    return FromTensorFlow(
        ctx->allocate_temp(value.dtype(), value.shape(), tensor));
  }

  void Put(const tf::Tensor& tensor) override {
    const tf::mutex_lock lock(*var_->mu());
    if (!var_->tensor()->SharesBufferWith(tensor)) *var_->tensor() = tensor;
    var_->is_initialized = true;
  }

 private:
  const tf::core::RefCountPtr<tf::Var> var_;
};

// TensorFlow writes to these in place, even if others refer to the memory.
class ReferenceVariable final : public Variable {
 public:
  ReferenceVariable(tf::OpKernelContext* ctx, int index)
      : ctx_(ctx), index_(index) {}

  Status Take(tf::OpKernelContext*, bool, tf::Tensor* tensor) override {
    *tensor = Value();
    return tensor->IsInitialized() ? Status::Ok() : NoValue();
  }

  void Put(const tf::Tensor& tensor) override {
    if (Value().SharesBufferWith(tensor)) return;
    ctx_->replace_ref_input(index_, tensor, /*lock_held=*/false);
  }

 private:
  tf::Tensor Value() {
    return ctx_->mutable_input(index_, /*lock_held=*/false);
  }

  tf::OpKernelContext* const ctx_;
  const int index_;
};

// A variable and the memory that it gets in the end.
struct Written {
  std::unique_ptr<Variable> variable;
  tf::Tensor tensor;
};

class InplaceKernel : public CollectiveKernel {
 protected:
  explicit InplaceKernel(tf::OpKernelConstruction* ctx)
      : CollectiveKernel(ctx, OpKind::kBroadcast) {}

  // Prepares variable `index`, and computes its name for errors.
  virtual Status Find(tf::OpKernelContext* ctx, int index,
                      std::unique_ptr<Variable>* variable,
                      std::string* name) const = 0;

 private:
  Status FillEntry(Call* call) final {
    const bool is_root = IsRoot(*call);
    auto written = std::make_shared<std::vector<Written>>();
    for (int i = 0; i < call->ctx->num_inputs(); ++i) {
      const auto index = static_cast<size_t>(i);
      std::string name = "number " + std::to_string(i);
      Written one;
      Status status = Find(call->ctx, i, &one.variable, &name);
      if (status.ok()) status = AddVariable(call, is_root, &one);
      if (index < member_names().size()) name = member_names()[index];
      if (!status.ok()) return status.WithContext("variable '" + name + "'");
      if (!is_root) written->push_back(std::move(one));
    }
    call->finish = [written](int32_t) {
      for (Written& one : *written) one.variable->Put(one.tensor);
      // The variables must be the only owners of their memory when TensorFlow
      // continues.
      written->clear();
      return Status::Ok();
    };
    return Status::Ok();
  }

  Status AddVariable(Call* call, bool is_root, Written* one) const {
    TF_HVD_RETURN_IF_ERROR(
        one->variable->Take(call->ctx, !is_root, &one->tensor));
    TensorSpec spec;
    TF_HVD_RETURN_IF_ERROR(ToSpec(one->tensor, &spec));
    Span memory;
    memory.input = one->tensor.data();
    memory.output = one->tensor.data();
    memory.count = one->tensor.NumElements();
    call->held->push_back(one->tensor);
    Add(call, std::move(spec), memory);
    return Status::Ok();
  }
};

class InplaceResourceKernel final : public InplaceKernel {
 public:
  explicit InplaceResourceKernel(tf::OpKernelConstruction* ctx)
      : InplaceKernel(ctx) {}

 private:
  Status Find(tf::OpKernelContext* ctx, int index,
              std::unique_ptr<Variable>* variable,
              std::string* name) const override {
    tf::ResourceHandle handle;
    TF_HVD_RETURN_IF_ERROR(
        FromTensorFlow(tf::HandleFromInput(ctx, index, &handle)));
    *name = handle.name();
    tf::core::RefCountPtr<tf::Var> var;
    const absl::Status found = tf::LookupResource(ctx, handle, &var);
    if (absl::IsNotFound(found)) return NoValue();
    TF_HVD_RETURN_IF_ERROR(FromTensorFlow(found));
    *variable = std::make_unique<ResourceVariable>(std::move(var));
    return Status::Ok();
  }
};

class InplaceReferenceKernel final : public InplaceKernel {
 public:
  explicit InplaceReferenceKernel(tf::OpKernelConstruction* ctx)
      : InplaceKernel(ctx) {}

 private:
  Status Find(tf::OpKernelContext* ctx, int index,
              std::unique_ptr<Variable>* variable,
              std::string*) const override {
    ctx->forward_ref_input_to_ref_output(index, index);
    *variable = std::make_unique<ReferenceVariable>(ctx, index);
    return Status::Ok();
  }
};

[[maybe_unused]] const bool inplace_resource =
    RegisterKernel<InplaceResourceKernel>("HorovodBroadcastInplaceResource",
                                          {"resources"});
[[maybe_unused]] const bool inplace =
    RegisterKernel<InplaceReferenceKernel>("HorovodBroadcastInplace");

}  // namespace
}  // namespace tf_hvd
