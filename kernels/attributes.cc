#include "kernels/attributes.h"

#include <cstring>

#include "kernels/tf_adapters.h"

namespace tf_hvd {
namespace {

// Written by tf_hvd/core/call_sites.py.
constexpr char kSource[] = "_tf_hvd_source";
// In the order in which an op may have them; an op has at most one of them.
constexpr const char* kMemberNames[] = {"member_names", "variable_names"};

Status ReadOperation(int number, ReduceOp* reduce_op) {
  if (number >= 0 && number < kReduceOpCount) {
    *reduce_op = static_cast<ReduceOp>(number);
    return Status::Ok();
  }
  std::string names;
  for (int i = 0; i < kReduceOpCount; ++i) {
    if (i > 0) names += i + 1 < kReduceOpCount ? ", " : " or ";
    names += NameOf(static_cast<ReduceOp>(i));
  }
  return InvalidArgument("invalid reduce_op " + std::to_string(number) +
                         "; pass " + names);
}

Status ReadWire(const std::string& wire, ReductionAttributes* attributes) {
  if (wire.empty()) return Status::Ok();
  for (const DType half : {DType::kFloat16, DType::kBfloat16}) {
    if (wire == NameOf(half)) attributes->wire = half;
  }
  if (!attributes->wire.has_value() || attributes->travels != DType::kFloat32) {
    return InvalidArgument(
        std::string("cannot send ") + NameOf(attributes->travels) + " as " +
        wire +
        "; wire_dtype must be float16 or bfloat16, and the tensor float32");
  }
  attributes->travels = *attributes->wire;
  return Status::Ok();
}

}  // namespace

absl::Status ReadAttributes(tf::OpKernelConstruction* ctx,
                            CollectiveAttributes* attributes) {
  TF_RETURN_IF_ERROR(ctx->GetAttr("process_set_id", &attributes->set));
  for (const char* name : kMemberNames) {
    TF_RETURN_IF_ERROR(ReadOptional(ctx, name, &attributes->member_names));
  }
  TF_RETURN_IF_ERROR(ReadOptional(ctx, "stamp_count", &attributes->step_count));
  TF_RETURN_IF_ERROR(ReadOptional(ctx, "root_rank", &attributes->root));
  TF_RETURN_IF_ERROR(ReadOptional(ctx, kSource, &attributes->source));
  // HorovodJoin has neither of these attributes.
  bool ignore_name_scope = false;
  TF_RETURN_IF_ERROR(ReadOptional(ctx, "wire_name", &attributes->name));
  TF_RETURN_IF_ERROR(
      ReadOptional(ctx, "ignore_name_scope", &ignore_name_scope));
  attributes->named = !attributes->name.empty();
  if (attributes->named) return absl::OkStatus();
  attributes->name = ctx->def().name();
  attributes->unnamed = attributes->name == ctx->def().op();
  if (ignore_name_scope) {
    // If there is no '/', npos + 1 is 0.
    attributes->name.erase(0, attributes->name.find_last_of('/') + 1);
  }
  return absl::OkStatus();
}

absl::Status ReadReduction(tf::OpKernelConstruction* ctx,
                           ReductionAttributes* attributes) {
  int reduce_op = 0;
  float prescale = 1.0f;
  float postscale = 1.0f;
  tf::DataType dtype = tf::DT_INVALID;
  std::vector<int64_t> exact;
  std::string wire;
  TF_RETURN_IF_ERROR(ctx->GetAttr("reduce_op", &reduce_op));
  TF_RETURN_IF_ERROR(ctx->GetAttr("prescale_factor", &prescale));
  TF_RETURN_IF_ERROR(ctx->GetAttr("postscale_factor", &postscale));
  TF_RETURN_IF_ERROR(ctx->GetAttr("exact_factors", &exact));
  TF_RETURN_IF_ERROR(ctx->GetAttr("compression", &attributes->compression));
  TF_RETURN_IF_ERROR(ctx->GetAttr("T", &dtype));
  TF_RETURN_IF_ERROR(ctx->GetAttr("wire_dtype", &wire));
  attributes->prescale = prescale;
  attributes->postscale = postscale;
  if (exact.size() == 2) {
    std::memcpy(&attributes->prescale, &exact[0], sizeof(double));
    std::memcpy(&attributes->postscale, &exact[1], sizeof(double));
  }
  Status& valid = attributes->valid;
  valid = ToDType(dtype, &attributes->travels);
  if (valid.ok()) valid = ReadWire(wire, attributes);
  if (valid.ok()) valid = ReadOperation(reduce_op, &attributes->reduce_op);
  if (exact.size() != 2 && !exact.empty()) {
    valid = InvalidArgument("exact_factors must have two numbers or none");
  }
  return absl::OkStatus();
}

absl::Status ReadVerdict(tf::OpKernelConstruction* ctx, Verdict* verdict) {
  TF_RETURN_IF_ERROR(ctx->GetAttr("names", &verdict->names));
  TF_RETURN_IF_ERROR(ctx->GetAttr("before", &verdict->before));
  TF_RETURN_IF_ERROR(ctx->GetAttr("after", &verdict->after));
  return ctx->GetAttr("fails", &verdict->fails);
}

void ReductionAttributes::Fill(Request* request) const {
  request->reduce_op = reduce_op;
  request->prescale = prescale;
  request->postscale = postscale;
  request->compression = compression;
}

}  // namespace tf_hvd
