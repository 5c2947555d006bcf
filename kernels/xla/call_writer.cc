#include "kernels/xla/call_writer.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "kernels/xla/handlers.h"
#include "xla/shape_util.h"

namespace tf_hvd {
namespace {

using Alias = std::pair<xla::ShapeIndex, std::pair<int64_t, xla::ShapeIndex>>;

Alias Aliased(size_t result, size_t operand) {
  return {{static_cast<int64_t>(result)}, {static_cast<int64_t>(operand), {}}};
}

xla::Shape InRows(const xla::Shape& shape) {
  return xla::ShapeUtil::MakeShapeWithDescendingLayout(shape.element_type(),
                                                       shape.dimensions());
}

// Rows are contiguous in memory. Returns a tuple.
xla::XlaOp CallOf(xla::XlaBuilder* builder, const char* target,
                  const std::vector<xla::XlaOp>& operands,
                  const std::vector<xla::Shape>& results,
                  const std::string& attributes,
                  const std::vector<Alias>& aliases,
                  xla::CustomCallSchedule schedule, bool has_side_effect) {
  std::vector<xla::Shape> layouts;
  for (const xla::XlaOp operand : operands) {
    const absl::StatusOr<xla::Shape> shape = builder->GetShape(operand);
    if (!shape.ok()) return builder->ReportError(shape.status());
    layouts.push_back(InRows(*shape));
  }
  std::vector<xla::Shape> shapes;
  for (const xla::Shape& shape : results) shapes.push_back(InRows(shape));
  return xla::CustomCallWithLayout(
      builder, target, operands, xla::ShapeUtil::MakeTupleShape(shapes),
      layouts, attributes, has_side_effect, aliases, /*literal=*/nullptr,
      schedule, xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
}

}  // namespace

xla::XlaOp WriteCall(xla::XlaBuilder* builder, const char* target,
                     const std::vector<xla::XlaOp>& operands,
                     const xla::Shape& result, const std::string& attributes,
                     bool has_side_effect) {
  const xla::XlaOp called =
      CallOf(builder, target, operands, {result}, attributes, {},
             xla::CustomCallSchedule::SCHEDULE_NONE, has_side_effect);
  return xla::GetTupleElement(called, 0);
}

std::vector<xla::XlaOp> CallWriter::Write(const CompiledCall& call) {
  const size_t tensors = tensors_.size();
  const size_t outputs = outputs_.size();
  const size_t first = outputs > 0 ? tensors : 0;
  const size_t results = outputs > 0 ? outputs : tensors;
  std::vector<xla::Shape> held = shapes_;
  held.insert(held.end(), outputs_.begin(), outputs_.end());
  held.push_back(xla::ShapeUtil::MakeShape(xla::S32, {}));

  std::vector<xla::XlaOp> operands = tensors_;
  if (step_.valid()) operands.push_back(step_);
  if (iteration_.valid()) operands.push_back(iteration_);
  std::vector<Alias> aliases;
  for (size_t i = 0; i < tensors; ++i) aliases.push_back(Aliased(i, i));
  const std::string attributes =
      absl::StrCat("{call = \"", EncodeCall(call), "\", tensors = ", tensors,
                   " : i64, steps = ", step_.valid() ? 1 : 0, " : i64}");
  const xla::XlaOp start =
      CallOf(builder_, kStartTarget, operands, held, attributes, aliases,
             xla::CustomCallSchedule::SCHEDULE_EARLIEST,
             /*has_side_effect=*/true);

  operands.clear();
  for (size_t i = 0; i < held.size(); ++i) {
    operands.push_back(xla::GetTupleElement(start, i));
  }
  std::vector<xla::Shape> ended;
  aliases.clear();
  for (size_t i = 0; i < results; ++i) {
    ended.push_back(held[first + i]);
    aliases.push_back(Aliased(i, first + i));
  }
  aliases.push_back(Aliased(results, held.size() - 1));
  ended.push_back(held.back());
  const xla::XlaOp end =
      CallOf(builder_, kEndTarget, operands, ended, "", aliases,
             xla::CustomCallSchedule::SCHEDULE_LATEST,
             /*has_side_effect=*/true);
  std::vector<xla::XlaOp> values;
  for (size_t i = 0; i < results; ++i) {
    values.push_back(xla::GetTupleElement(end, i));
  }
  return values;
}

}  // namespace tf_hvd
