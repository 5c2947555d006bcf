#include "kernels/collective_kernel.h"

#include <algorithm>
#include <utility>

#include "kernels/tf_adapters.h"

namespace tf_hvd {
namespace {

std::string Title(OpKind kind, const std::string& name) {
  return std::string(NameOf(kind)) + " '" + name + "'";
}

void FinishWith(const Status& status, tf::OpKernelContext* ctx,
                const tf::AsyncOpKernel::DoneCallback& done) {
  if (!status.ok()) ctx->SetStatus(ToTensorFlow(status));
  done();
}

}  // namespace

Status UnknownSet(int32_t set) {
  return InvalidArgument("there is no process set " + std::to_string(set) +
                         "; pass a set that add_process_set returned and "
                         "that was not removed");
}

Status CheckSet(const Runtime& runtime, int32_t set) {
  if (set == kWorldSet) return Status::Ok();
  const std::vector<int> ranks = runtime.SetRanks(set);
  if (ranks.empty()) return UnknownSet(set);
  const int rank = runtime.topology().rank;
  if (!std::binary_search(ranks.begin(), ranks.end(), rank)) {
    return InvalidArgument("rank " + std::to_string(rank) +
                           " is not in process set " + std::to_string(set) +
                           "; only its members may call its collectives");
  }
  return Status::Ok();
}

CollectiveKernel::CollectiveKernel(tf::OpKernelConstruction* ctx, OpKind kind)
    : AsyncOpKernel(ctx), kind_(kind) {
  bool ignore_name_scope = false;
  OP_REQUIRES_OK(ctx, ctx->GetAttr("process_set_id", &set_));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("ignore_name_scope", &ignore_name_scope));
  OP_REQUIRES_OK(ctx, ctx->GetAttr("wire_name", &name_));
  if (!name_.empty()) return;
  name_ = name();
  // A node of a graph may be called so as well; it then finds no name waiting,
  // for Python sets one on its own thread and only around an eager call.
  eager_ = name_ == type_string();
  if (ignore_name_scope) {
    // npos + 1 is 0.
    name_.erase(0, name_.find_last_of('/') + 1);
  }
}

std::string CollectiveKernel::WireName(const tf::OpKernelContext& ctx) const {
  std::string wire_name = eager_ ? TakeEagerName() : std::string();
  if (wire_name.empty()) wire_name = name_;
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
  Entry entry;
  // Before anything can fail: a name that is left behind would be the next
  // call's.
  entry.name = WireName(*ctx);
  const std::shared_ptr<Runtime> runtime = DefaultRuntime();
  if (runtime == nullptr) {
    FinishWith(FailedPrecondition(NotInitializedText()), ctx, done);
    return;
  }
  const Status set_status = CheckSet(*runtime, set_);
  if (!set_status.ok()) {
    FinishWith(set_status.WithContext(Title(kind_, entry.name)), ctx, done);
    return;
  }
  entry.set = set_;
  entry.record.kind = kind_;
  auto held = std::make_shared<HeldTensors>();
  const Status filled = FillEntry(ctx, *runtime, held, &entry);
  if (!filled.ok()) {
    entry.refusal = filled.WithContext(Title(kind_, entry.name)).message();
  }
  entry.keepalive = std::move(held);
  entry.done =
      Completion([ctx, done = std::move(done)](const Status& status, int32_t) {
        FinishWith(status, ctx, done);
      });
  // From here on the kernel and the context may be gone at any time.
  runtime->Submit(std::move(entry));
}

Status CollectiveKernel::AddTensor(tf::OpKernelContext* ctx, int index,
                                   Output output, HeldTensors* held,
                                   Entry* entry) {
  const tf::Tensor& input = ctx->input(index);
  TensorSpec spec;
  TF_HVD_RETURN_IF_ERROR(ToSpec(input, &spec));
  TensorBuffers buffers;
  buffers.input = input.data();
  buffers.count = input.NumElements();
  if (output == Output::kInput) {
    ctx->set_output(index, input);
    buffers.output = input.data();
  } else if (output == Output::kSameShape) {
    tf::Tensor* result = nullptr;
    TF_HVD_RETURN_IF_ERROR(FromTensorFlow(ctx->forward_input_or_allocate_output(
        {index}, index, input.shape(), &result)));
    buffers.output = result->data();
    if (buffers.output != buffers.input) held->push_back(*result);
  }
  // Not before: TensorFlow forwards only memory that nobody else refers to.
  held->push_back(input);
  entry->record.tensors.push_back(std::move(spec));
  entry->tensors.push_back(buffers);
  return Status::Ok();
}

}  // namespace tf_hvd
