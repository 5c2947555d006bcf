// CompiledCall: the part of a collective that is fixed when a step is compiled,
// and its encoding in an XLA attribute; likewise the encoding of a verdict.
// Pure.
#ifndef TF_HVD_KERNELS_XLA_COMPILED_CALL_H_
#define TF_HVD_KERNELS_XLA_COMPILED_CALL_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/types.h"
#include "kernels/verdict.h"
#include "runtime/request/request.h"

namespace tf_hvd {

struct CompiledCall {
  int32_t set = kWorldSet;
  std::string name;
  std::string source;  // "train.py:88"; empty if unknown
  Request request;
  // An error found while the step was compiled. The call is still made, because
  // the other ranks wait for it.
  std::string error;
};

// Encoded as letters and digits.
std::string EncodeCall(const CompiledCall& call);
Status DecodeCall(std::string_view text, CompiledCall* call);

std::string EncodeVerdict(const Verdict& verdict);
Status DecodeVerdict(std::string_view text, Verdict* verdict);

// Whether the results have separate memory; otherwise they reuse that of the
// tensors.
inline bool HasOutputs(OpKind kind) {
  return RowsDiffer(kind) || YieldOf(kind) == Yield::kOwnRows;
}

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_XLA_COMPILED_CALL_H_
