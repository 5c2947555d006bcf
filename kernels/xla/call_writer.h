// Writes calls of handlers.h into the program that XLA compiles.
#ifndef TF_HVD_KERNELS_XLA_CALL_WRITER_H_
#define TF_HVD_KERNELS_XLA_CALL_WRITER_H_

#include <string>
#include <utility>
#include <vector>

#include "kernels/xla/compiled_call.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tf_hvd {

// A call with one result that is complete when it returns. Because of its side
// effects XLA neither merges it with an equal one nor removes it when the
// result is unused.
xla::XlaOp WriteCall(xla::XlaBuilder* builder, const char* target,
                     const std::vector<xla::XlaOp>& operands,
                     const xla::Shape& result, const std::string& attributes,
                     bool has_side_effect);

// Writes the start and the end of one collective. Runs on the compiling thread.
class CallWriter {
 public:
  CallWriter(xla::XlaBuilder* builder, std::vector<xla::XlaOp> tensors,
             std::vector<xla::Shape> shapes)
      : builder_(builder),
        tensors_(std::move(tensors)),
        shapes_(std::move(shapes)) {}

  // Shapes of the results that have separate memory.
  void SetOutputs(std::vector<xla::Shape> shapes) {
    outputs_ = std::move(shapes);
  }
  void SetStep(xla::XlaOp step) { step_ = step; }
  // The loop's iteration number.
  void SetIteration(xla::XlaOp iteration) { iteration_ = iteration; }

  // The results, in the order of the tensors.
  std::vector<xla::XlaOp> Write(const CompiledCall& call);

 private:
  xla::XlaBuilder* const builder_;
  const std::vector<xla::XlaOp> tensors_;
  const std::vector<xla::Shape> shapes_;
  std::vector<xla::Shape> outputs_;
  xla::XlaOp step_;
  xla::XlaOp iteration_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_XLA_CALL_WRITER_H_
