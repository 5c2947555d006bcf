// The kernels that XLA compiles collectives with: they run while a step is
// compiled and write calls of handlers.h into the program.
#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/attributes.h"
#include "kernels/tf_adapters.h"
#include "kernels/xla/call_writer.h"
#include "kernels/xla/compiled_calls.h"
#include "kernels/xla/handlers.h"
#include "kernels/xla/xla_library.h"
#include "tensorflow/compiler/tf2xla/xla_context.h"
#include "tensorflow/compiler/tf2xla/xla_expression.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape_util.h"

// From libtensorflow_cc; the header that declares it needs MLIR's headers.
namespace xla::ffi {
const XLA_FFI_Api* GetXlaFfiApi();
}

namespace tf_hvd {
namespace {

bool IsOnGpu(const tf::OpKernelConstruction& ctx) {
  return ctx.device_type() == tf::DeviceType("XLA_GPU_JIT");
}

// Without the numbers that TensorFlow adds to names: other processes may have
// created other functions before.
std::string WithoutNumbers(std::string_view name) {
  std::string result;
  for (const std::string_view part : absl::StrSplit(name, '_')) {
    const bool number =
        !part.empty() && std::all_of(part.begin(), part.end(), [](char digit) {
          return absl::ascii_isdigit(static_cast<unsigned char>(digit));
        });
    if (!number) absl::StrAppend(&result, result.empty() ? "" : "_", part);
  }
  return result;
}

// The function that is being compiled.
std::string FunctionOf(const xla::XlaBuilder& builder) {
  std::string_view name = builder.name();
  name = name.substr(0, name.find('['));
  absl::ConsumePrefix(&name, "__inference_");
  return WithoutNumbers(name);
}

// The iteration number of the loop that is compiled, which TensorFlow passes as
// its first argument; not valid outside loops.
xla::XlaOp IterationOf(const tf::XlaOpKernelContext& ctx) {
  const std::string function = FunctionOf(*ctx.builder());
  const auto& arguments = ctx.xla_context()->args();
  if (function.find("_body") == std::string::npos || arguments.empty() ||
      arguments[0].kind() != tf::XlaExpression::Kind::kXlaOp) {
    return {};
  }
  const xla::XlaOp first = arguments[0].handle();
  const absl::StatusOr<xla::Shape> shape = ctx.builder()->GetShape(first);
  if (!shape.ok() || shape->element_type() != xla::S32 ||
      !shape->dimensions().empty()) {
    return {};
  }
  return first;
}

Status ToSpec(const xla::Shape& shape, tf::DataType type, TensorSpec* spec) {
  spec->shape.assign(shape.dimensions().begin(), shape.dimensions().end());
  return ToDType(type, &spec->dtype);
}

xla::PrimitiveType HalfOf(DType dtype) {
  return dtype == DType::kFloat16 ? xla::F16 : xla::BF16;
}

// The common base of all collectives' kernels, sufficient for most of them.
class CompiledKernel : public tf::XlaOpKernel {
 public:
  CompiledKernel(tf::OpKernelConstruction* ctx, OpKind kind)
      : XlaOpKernel(ctx), kind_(kind), on_gpu_(IsOnGpu(*ctx)) {
    OP_REQUIRES_OK(ctx, ReadAttributes(ctx, &attributes_));
  }

  void Compile(tf::XlaOpKernelContext* ctx) final {
    RegisteredCalls()->NoteCompilation(FunctionOf(*ctx->builder()));
    OP_REQUIRES_OK(ctx, CompileCall(ctx));
  }

 protected:
  // Adds the fields specific to the collective to the call.
  virtual void Describe(CompiledCall*) const {}

  // The type that tensors are sent in; none: their own type.
  virtual std::optional<DType> wire() const { return std::nullopt; }

  // Tensors: their number, reading them and returning the results. By default
  // all inputs but the step.
  virtual absl::Status Read(tf::XlaOpKernelContext* ctx,
                            std::vector<xla::XlaOp>* tensors,
                            std::vector<tf::DataType>* types) const {
    const int count = ctx->num_inputs() - attributes_.step_count;
    for (int i = 0; i < count; ++i) {
      tensors->push_back(ctx->Input(i));
      types->push_back(ctx->input_type(i));
    }
    return absl::OkStatus();
  }
  virtual absl::Status Give(tf::XlaOpKernelContext* ctx,
                            const std::vector<xla::XlaOp>& results) const {
    for (size_t i = 0; i < results.size(); ++i) {
      ctx->SetOutput(static_cast<int>(i), results[i]);
    }
    return absl::OkStatus();
  }

  const CollectiveAttributes& attributes() const { return attributes_; }

 private:
  std::string WireName(const tf::XlaOpKernelContext& ctx) const {
    if (attributes_.named) return attributes_.name;
    return absl::StrCat(FunctionOf(*ctx.builder()), "/", attributes_.name);
  }

  absl::Status CompileCall(tf::XlaOpKernelContext* ctx) {
    CompiledCall call;
    call.set = attributes_.set;
    call.name = WireName(*ctx);
    call.request.kind = kind_;
    call.request.compiled = true;
    call.request.root = attributes_.root;
    call.source = attributes_.source;
    Describe(&call);

    std::vector<xla::XlaOp> tensors;
    std::vector<tf::DataType> types;
    TF_RETURN_IF_ERROR(Read(ctx, &tensors, &types));
    std::vector<xla::Shape> shapes;
    std::vector<xla::PrimitiveType> originals;
    for (size_t i = 0; i < tensors.size(); ++i) {
      TF_ASSIGN_OR_RETURN(xla::Shape shape,
                          ctx->builder()->GetShape(tensors[i]));
      originals.push_back(shape.element_type());
      TensorSpec spec;
      TF_RETURN_IF_ERROR(ToTensorFlow(ToSpec(shape, types[i], &spec)));
      if (attributes_.member_names.size() == tensors.size()) {
        spec.name = attributes_.member_names[i];
      }
      if (shape.is_dynamic()) {
        return absl::InvalidArgumentError(
            absl::StrCat(call.name, ": the shape depends on data"));
      }
      if (wire().has_value()) {
        spec.dtype = *wire();
        tensors[i] = xla::ConvertElementType(tensors[i], HalfOf(spec.dtype));
        shape = xla::ShapeUtil::ChangeElementType(shape, HalfOf(spec.dtype));
      }
      call.request.tensors.push_back(std::move(spec));
      shapes.push_back(shape);
    }
    // A barrier has no tensors, and must match those of ranks without a GPU.
    if (on_gpu_ && !tensors.empty()) call.request.device = DeviceKind::kGpu;
    std::vector<xla::Shape> outputs;
    TF_RETURN_IF_ERROR(Outputs(call, shapes, &outputs));
    CallWriter writer(ctx->builder(), std::move(tensors), std::move(shapes));
    writer.SetOutputs(std::move(outputs));
    // On a GPU the host would have to wait for them: calls of one name, as in a
    // loop, match in their order.
    if (!on_gpu_) {
      if (attributes_.step_count > 0) {
        writer.SetStep(ctx->Input(ctx->num_inputs() - 1));
      }
      writer.SetIteration(IterationOf(*ctx));
    }
    std::vector<xla::XlaOp> results = writer.Write(call);
    if (wire().has_value()) {
      for (size_t i = 0; i < results.size(); ++i) {
        results[i] = xla::ConvertElementType(results[i], originals[i]);
      }
    }
    return Give(ctx, results);
  }

  // The shapes of results that have separate memory.
  absl::Status Outputs(const CompiledCall& call,
                       const std::vector<xla::Shape>& shapes,
                       std::vector<xla::Shape>* outputs) const {
    if (!HasOutputs(kind_)) return absl::OkStatus();
    int64_t ranks = 0;
    int64_t place = 0;
    TF_RETURN_IF_ERROR(ToTensorFlow(RegisteredCalls()
                                        ->Ranks(call.set, &ranks, &place)
                                        .WithContext(call.name)));
    for (const xla::Shape& shape : shapes) {
      if (shape.dimensions().empty()) {
        return absl::InvalidArgumentError(absl::StrCat(
            call.name,
            ": the tensor is a scalar, but must have at least one dimension; "
            "reshape it: tf.reshape(tensor, [1])"));
      }
      xla::Shape output = shape;
      const int64_t rows = shape.dimensions(0);
      if (YieldOf(kind_) == Yield::kAllRows) {
        output.set_dimensions(0, rows * ranks);
      } else if (YieldOf(kind_) == Yield::kOwnRows) {
        output.set_dimensions(0, ScatteredRows(rows, static_cast<size_t>(ranks),
                                               static_cast<size_t>(place)));
      }
      outputs->push_back(output);
    }
    return absl::OkStatus();
  }

  const OpKind kind_;
  const bool on_gpu_;
  CollectiveAttributes attributes_;
};

class ReductionKernel final : public CompiledKernel {
 public:
  ReductionKernel(tf::OpKernelConstruction* ctx, OpKind kind)
      : CompiledKernel(ctx, kind) {
    OP_REQUIRES_OK(ctx, ReadReduction(ctx, &reduction_));
  }

 private:
  void Describe(CompiledCall* call) const override {
    reduction_.Fill(&call->request);
    call->error = reduction_.valid.message();
  }
  std::optional<DType> wire() const override { return reduction_.wire; }

  ReductionAttributes reduction_;
};

class AlltoallKernel final : public CompiledKernel {
 public:
  using CompiledKernel::CompiledKernel;

 private:
  absl::Status Read(tf::XlaOpKernelContext* ctx,
                    std::vector<xla::XlaOp>* tensors,
                    std::vector<tf::DataType>* types) const override {
    TF_ASSIGN_OR_RETURN(const xla::Shape splits, ctx->InputXlaShape(1));
    if (xla::ShapeUtil::ElementsIn(splits) > 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "alltoall '", attributes().name,
          "' with splits cannot be compiled by XLA: the number of rows from "
          "each rank depends on data. Omit splits, so that each rank gets the "
          "same number, or call it outside the compiled function "
          "(jit_compile=False)"));
    }
    tensors->push_back(ctx->Input(0));
    types->push_back(ctx->input_type(0));
    return absl::OkStatus();
  }

  absl::Status Give(tf::XlaOpKernelContext* ctx,
                    const std::vector<xla::XlaOp>& results) const override {
    int64_t ranks = 0;
    int64_t place = 0;
    TF_RETURN_IF_ERROR(ToTensorFlow(
        RegisteredCalls()->Ranks(attributes().set, &ranks, &place)));
    TF_ASSIGN_OR_RETURN(const xla::Shape shape, ctx->InputXlaShape(0));
    const auto rows = static_cast<int32_t>(shape.dimensions(0) / ranks);
    ctx->SetOutput(0, results[0]);
    ctx->SetOutput(
        1, xla::Broadcast(xla::ConstantR0<int32_t>(ctx->builder(), rows),
                          {ranks}));
    return absl::OkStatus();
  }
};

// Variables are inputs, and receive the results.
class BroadcastInplaceKernel final : public CompiledKernel {
 public:
  explicit BroadcastInplaceKernel(tf::OpKernelConstruction* ctx)
      : CompiledKernel(ctx, OpKind::kBroadcast) {}

 private:
  absl::Status Read(tf::XlaOpKernelContext* ctx,
                    std::vector<xla::XlaOp>* tensors,
                    std::vector<tf::DataType>* types) const override {
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      tf::DataType type = tf::DT_INVALID;
      tf::TensorShape shape;
      TF_RETURN_IF_ERROR(ctx->GetVariableTypeAndShape(i, &type, &shape));
      xla::XlaOp value;
      TF_RETURN_IF_ERROR(ctx->ReadVariableInput(i, type, nullptr, &value));
      tensors->push_back(value);
      types->push_back(type);
    }
    return absl::OkStatus();
  }

  absl::Status Give(tf::XlaOpKernelContext* ctx,
                    const std::vector<xla::XlaOp>& results) const override {
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      tf::DataType type = tf::DT_INVALID;
      tf::TensorShape shape;
      TF_RETURN_IF_ERROR(ctx->GetVariableTypeAndShape(i, &type, &shape));
      TF_RETURN_IF_ERROR(
          ctx->AssignVariable(i, type, results[static_cast<size_t>(i)]));
    }
    return absl::OkStatus();
  }
};

class JoinKernel final : public tf::XlaOpKernel {
 public:
  explicit JoinKernel(tf::OpKernelConstruction* ctx) : XlaOpKernel(ctx) {}

  void Compile(tf::XlaOpKernelContext* ctx) override {
    ctx->SetStatus(absl::UnimplementedError(
        "join() cannot be compiled by XLA: the collectives that a joined rank "
        "takes part in are not known before other ranks call them. Call it "
        "outside the compiled function (jit_compile=False)"));
  }
};

// Read when the program runs: the job may have been restarted since it was
// compiled.
class NumberKernel final : public tf::XlaOpKernel {
 public:
  explicit NumberKernel(tf::OpKernelConstruction* ctx) : XlaOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ReadOptional(ctx, "process_set_id", &set_));
  }

  void Compile(tf::XlaOpKernelContext* ctx) override {
    const std::string attributes =
        absl::StrCat("{op = \"", type_string(), "\", set = ", set_, " : i64}");
    ctx->SetOutput(0, WriteCall(ctx->builder(), kNumberTarget, {},
                                xla::ShapeUtil::MakeShape(xla::S32, {}),
                                attributes, /*has_side_effect=*/true));
  }

 private:
  int32_t set_ = kWorldSet;
};

// A GPU has no fingerprints, because the host would have to wait for the
// device.
class FingerprintsKernel final : public tf::XlaOpKernel {
 public:
  explicit FingerprintsKernel(tf::OpKernelConstruction* ctx)
      : XlaOpKernel(ctx), on_gpu_(IsOnGpu(*ctx)) {}

  void Compile(tf::XlaOpKernelContext* ctx) override {
    const int64_t count = ctx->num_inputs();
    if (on_gpu_) {
      const auto zero = xla::ConstantR0<int64_t>(ctx->builder(), 0);
      return ctx->SetOutput(0, xla::Broadcast(zero, {count}));
    }
    std::vector<xla::XlaOp> values;
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      values.push_back(ctx->Input(i));
    }
    ctx->SetOutput(0,
                   WriteCall(ctx->builder(), kFingerprintsTarget, values,
                             xla::ShapeUtil::MakeShape(xla::S64, {count}), "",
                             /*has_side_effect=*/false));
  }

 private:
  const bool on_gpu_;
};

class VerdictKernel final : public tf::XlaOpKernel {
 public:
  explicit VerdictKernel(tf::OpKernelConstruction* ctx)
      : XlaOpKernel(ctx), on_gpu_(IsOnGpu(*ctx)) {
    OP_REQUIRES_OK(ctx, ReadVerdict(ctx, &verdict_));
  }

  void Compile(tf::XlaOpKernelContext* ctx) override {
    if (on_gpu_) {
      return ctx->SetOutput(0, xla::ConstantR0<bool>(ctx->builder(), true));
    }
    const std::string attributes =
        absl::StrCat("{verdict = \"", EncodeVerdict(verdict_), "\"}");
    ctx->SetOutput(
        0, WriteCall(ctx->builder(), kVerdictTarget, {ctx->Input(0)},
                     xla::ShapeUtil::MakeShape(xla::PRED, {}), attributes,
                     /*has_side_effect=*/true));
  }

 private:
  const bool on_gpu_;
  Verdict verdict_;
};

using Maker = tf::OpKernel* (*)(tf::OpKernelConstruction* ctx);

template <typename Kernel>
tf::OpKernel* Make(tf::OpKernelConstruction* ctx) {
  return new Kernel(ctx);
}

tf::OpKernel* MakeBarrier(tf::OpKernelConstruction* ctx) {
  return new CompiledKernel(ctx, OpKind::kBarrier);
}

// For the ops that OpsOf lists.
tf::OpKernel* MakeOf(OpKind kind, tf::OpKernelConstruction* ctx) {
  if (Reduces(kind)) return new ReductionKernel(ctx, kind);
  if (YieldOf(kind) == Yield::kSentRows) return new AlltoallKernel(ctx, kind);
  return new CompiledKernel(ctx, kind);
}

// For the other ops.
constexpr std::pair<const char*, Maker> kMakers[] = {
    {"HorovodBarrier", MakeBarrier},
    {"HorovodBroadcastInplaceResource", Make<BroadcastInplaceKernel>},
    {"HorovodJoin", Make<JoinKernel>},
    {"HorovodFingerprints", Make<FingerprintsKernel>},
    {"HorovodVerdict", Make<VerdictKernel>},
};

}  // namespace
}  // namespace tf_hvd

extern "C" __attribute__((visibility("default"))) const char* tf_hvd_xla_open(
    tf_hvd::CompiledCalls* calls) {
  static const std::string error =
      tf_hvd::RegisterHandlers(xla::ffi::GetXlaFfiApi(), calls);
  return error.empty() ? nullptr : error.c_str();
}

extern "C" __attribute__((visibility("default"))) tensorflow::OpKernel*
tf_hvd_xla_make_kernel(tensorflow::OpKernelConstruction* ctx) {
  for (const tf_hvd::OpKind kind : tf_hvd::TensorKinds()) {
    for (const std::string& op : tf_hvd::OpsOf(kind)) {
      if (ctx->def().op() == op) return tf_hvd::MakeOf(kind, ctx);
    }
  }
  for (const auto& [op, make] : tf_hvd::kMakers) {
    if (ctx->def().op() == op) return make(ctx);
  }
  return new tf_hvd::NumberKernel(ctx);
}

// Called as the other library looks them up: by name, without a declaration.
static_assert(std::is_same_v<decltype(tf_hvd_xla_open), tf_hvd::XlaOpen>);
static_assert(
    std::is_same_v<decltype(tf_hvd_xla_make_kernel), tf_hvd::XlaMake>);
