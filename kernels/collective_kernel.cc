#include "kernels/collective_kernel.h"

#include <numeric>
#include <utility>

#include "kernels/huge_pages.h"
#include "kernels/on_gpu.h"
#include "kernels/tf_adapters.h"

namespace tf_hvd {
namespace {

void FailWith(const Status& status, tf::OpKernelContext* ctx,
              const tf::AsyncOpKernel::DoneCallback& done) {
  ctx->SetStatus(ToTensorFlow(status));
  done();
}

// Separate memory for a result that is no longer wanted.
Status AllocateUnseen(tf::Allocator* allocator, tf::DataType dtype,
                      const tf::TensorShape& shape, tf::Tensor* result) {
  *result = tf::Tensor(allocator, dtype, shape);
  if (result->IsInitialized()) return Status::Ok();
  return Internal("cannot allocate memory for a result of " +
                  shape.DebugString());
}

}  // namespace

// Allocates output `index`: the type and shape of an input, with the rows of
// all ranks.
struct RowsOutput {
  tf::OpKernelContext* ctx;
  int index;
  tf::DataType dtype;
  tf::TensorShape shape;
  std::shared_ptr<CallerState> caller;
  tf::Allocator* allocator;  // the device's, which outlives the call
  bool on_gpu;

  Status Allocate(const std::vector<int64_t>& first_dims, tf::Tensor* result) {
    const int64_t rows =
        std::accumulate(first_dims.begin(), first_dims.end(), int64_t{0});
    TF_HVD_RETURN_IF_ERROR(FromTensorFlow(shape.SetDimWithStatus(0, rows)));
    Status status;
    const bool waits = caller->WhileWaiting([&] {
      tf::Tensor* output = nullptr;
      status = FromTensorFlow(ctx->allocate_output(index, shape, &output));
      if (!status.ok()) return;
      if (!on_gpu) AdviseHugePages(output->data(), output->TotalBytes());
      *result = *output;
    });
    return waits ? status : AllocateUnseen(allocator, dtype, shape, result);
  }
};

CollectiveKernel::CollectiveKernel(tf::OpKernelConstruction* ctx, OpKind kind)
    : AsyncOpKernel(ctx),
      kind_(kind),
      on_gpu_(ctx->device_type() == tf::DeviceType(tf::DEVICE_GPU)) {
  OP_REQUIRES_OK(ctx, ReadAttributes(ctx, &attributes_));
}

std::string CollectiveKernel::WireName(const tf::OpKernelContext& ctx) const {
  // A node of a graph may also lack its own name. It finds no name waiting,
  // because Python sets one only on its own thread and only around an eager
  // call.
  std::string wire_name = attributes_.unnamed ? TakeEagerName() : std::string();
  if (wire_name.empty()) wire_name = attributes_.name;
  const tf::FrameAndIter frame = ctx.frame_iter();
  if (InLoop(frame)) {
    wire_name += ';';
    wire_name += std::to_string(frame.frame_id);
    wire_name += ':';
    wire_name += std::to_string(frame.iter_id);
  }
  return wire_name;
}

void CollectiveKernel::ComputeAsync(tf::OpKernelContext* ctx,
                                    DoneCallback done) {
  Call call;
  Entry& entry = call.entry;
  // Before anything can fail: a name that stays behind would be used by the
  // next call.
  entry.name = WireName(*ctx);
  // The kernel may be gone before Submit has read the name.
  const std::string own_source =
      attributes_.unnamed ? std::string() : attributes_.source;
  entry.source = attributes_.unnamed ? TakeEagerSource() : own_source;
  std::shared_ptr<Runtime> runtime;
  const Status initialized = FindDefaultRuntime(&runtime);
  if (!initialized.ok()) {
    FailWith(initialized, ctx, done);
    return;
  }
  const Status found = FindSet(*runtime, set(), &call.membership);
  if (!found.ok()) {
    FailWith(found.WithContext(TitleOf(kind_, entry.name)), ctx, done);
    return;
  }
  const auto pending = std::make_shared<PendingCall>(TitleOf(kind_, entry.name),
                                                     ctx, std::move(done));
  call.ctx = ctx;
  call.caller = pending->caller();
  call.runtime = runtime.get();
  call.held = std::make_shared<Call::HeldTensors>();
  entry.local_error = Fill(&call).WithContext(TitleOf(kind_, entry.name));
  entry.keepalive = std::move(call.held);
  entry.caller = pending->caller();
  entry.caller_waits = attributes_.unnamed;
  entry.done = Completion([pending, finish = std::move(call.finish)](
                              const Status& status, int32_t value) {
    pending->End(status, value, finish);
  });
  // From here on the kernel and the context may be gone at any time. A call of
  // a step that is already cancelled is submitted too: the other ranks wait for
  // it as for calls made a moment earlier.
  PendingCall::Watch(pending);
  runtime->Submit(std::move(entry));
}

Status CollectiveKernel::Fill(Call* call) {
  call->entry.set = set();
  call->entry.request.kind = kind_;
  if (on_gpu_) call->entry.request.device = DeviceKind::kGpu;
  TF_HVD_RETURN_IF_ERROR(ReadStep(call));
  const auto inputs = static_cast<size_t>(TensorCount(*call));
  if (!member_names().empty() && member_names().size() != inputs) {
    return InvalidArgument(std::to_string(member_names().size()) +
                           " names for " + std::to_string(inputs) +
                           " tensors; pass one name for each, or no names");
  }
  call->entry.request.tensors.reserve(inputs);
  call->entry.tensors.reserve(inputs);
  if (Has(kind_, kHasRoot)) {
    TF_HVD_RETURN_IF_ERROR(
        CheckRoot(attributes_.root, set(), call->membership));
    call->entry.request.root = attributes_.root;
  }
  TF_HVD_RETURN_IF_ERROR(FillEntry(call));
  if (!on_gpu_) return Status::Ok();
  return PlaceOnGpu(*call->runtime, StreamOf(call->ctx),
                    call->ctx->device()->name(), &call->entry);
}

int CollectiveKernel::TensorCount(const Call& call) const {
  return call.ctx->num_inputs() - attributes_.step_count;
}

Status CollectiveKernel::ReadStep(Call* call) const {
  if (attributes_.step_count == 0) return Status::Ok();
  const tf::Tensor& step = call->ctx->input(TensorCount(*call));
  const int64_t numbers = step.NumElements();
  if (attributes_.step_count > 1 || numbers < 1 || numbers > 2) {
    return InvalidArgument(
        "pass the step as the stamp, or the step and the number of a list of "
        "sources, or nothing");
  }
  call->entry.step = step.flat<int64_t>()(0);
  if (numbers == 2) {
    call->entry.sources = TheSources()->Find(step.flat<int64_t>()(1));
  }
  return Status::Ok();
}

void CollectiveKernel::Add(Call* call, TensorSpec spec,
                           const Span& memory) const {
  std::vector<TensorSpec>& specs = call->entry.request.tensors;
  if (specs.size() < member_names().size()) {
    spec.name = member_names()[specs.size()];
  }
  specs.push_back(std::move(spec));
  call->entry.tensors.push_back(memory);
}

Status CollectiveKernel::CheckHasRows(const Call& call) const {
  const std::vector<TensorSpec>& specs = call.entry.request.tensors;
  const TensorSpec& spec = specs.back();
  if (!spec.shape.empty()) return Status::Ok();
  std::string which = "the tensor";
  if (YieldOf(kind_) != Yield::kSentRows && TensorCount(call) > 1) {
    which = "tensor " + std::to_string(specs.size() - 1);
  }
  if (!spec.name.empty()) which += " '" + spec.name + "'";
  return InvalidArgument(which + " is a scalar, " +
                         Describe(spec.dtype, spec.shape) +
                         ", but must have at least one dimension; reshape it: "
                         "tf.reshape(tensor, [1])");
}

Status CollectiveKernel::AddTensor(Call* call, int index, Output output) const {
  tf::OpKernelContext* const ctx = call->ctx;
  const tf::Tensor& input = ctx->input(index);
  TensorSpec spec;
  TF_HVD_RETURN_IF_ERROR(ToSpec(input, &spec));
  Span memory;
  memory.input = input.data();
  memory.count = input.NumElements();
  if (output == Output::kInput) {
    ctx->set_output(index, input);
    memory.output = input.data();
  } else if (output == Output::kSameShape) {
    tf::Tensor* result = nullptr;
    TF_HVD_RETURN_IF_ERROR(FromTensorFlow(ctx->forward_input_or_allocate_output(
        {index}, index, input.shape(), &result)));
    memory.output = result->data();
    if (memory.output != memory.input) {
      if (!on_gpu_) AdviseHugePages(memory.output, result->TotalBytes());
      call->held->push_back(*result);
    }
  }
  // Not earlier: TensorFlow forwards only memory with a single reference.
  call->held->push_back(input);
  Add(call, std::move(spec), memory);
  return Status::Ok();
}

Status CollectiveKernel::AddRows(Call* call, int index) const {
  TF_HVD_RETURN_IF_ERROR(AddTensor(call, index, Output::kLater));
  Entry& entry = call->entry;
  TensorSpec& spec = entry.request.tensors.back();
  TF_HVD_RETURN_IF_ERROR(CheckHasRows(*call));
  entry.rows.push_back(spec.shape[0]);
  spec.shape[0] = -1;
  const tf::Tensor& input = call->ctx->input(index);
  const bool is_first = call->rows == nullptr;
  if (is_first) call->rows = std::make_shared<std::vector<RowsOutput>>();
  call->rows->push_back(
      {call->ctx, index, input.dtype(), input.shape(), call->caller,
       call->ctx->get_allocator(call->ctx->output_alloc_attr(index)), on_gpu_});
  if (!is_first) return Status::Ok();
  // Called by the holder of the progress lock, which completes the entry
  // afterwards; `held` outlives that.
  entry.allocate = [rows = call->rows, held = call->held](
                       size_t tensor, const std::vector<int64_t>& first_dims,
                       void** output) {
    tf::Tensor result;
    TF_HVD_RETURN_IF_ERROR((*rows)[tensor].Allocate(first_dims, &result));
    *output = result.data();
    held->push_back(result);
    return Status::Ok();
  };
  return Status::Ok();
}

}  // namespace tf_hvd
