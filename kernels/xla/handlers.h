// What XLA calls when a compiled step runs: handlers of its foreign function
// interface, which hand collectives to CompiledCalls. Includes nothing of
// TensorFlow's.
//
//   target               operands                   results
//   tf_hvd_start         tensors [, step] [, loop]  tensors, outputs, ticket
//   tf_hvd_end           tensors, outputs, ticket   tensors or outputs, ticket
//   tf_hvd_number        -                          number
//   tf_hvd_fingerprints  values                     fingerprints
//   tf_hvd_verdict       wrong                      passed
//
// The last two are not called on a GPU. A step is left out on a GPU, and so is
// the number of a loop's iteration: they would have to be waited for.
//
// Tensors keep their memory from the start to the end: what has the same name
// among operands and results is aliased. The ticket is memory that no other
// call has meanwhile; nobody writes there.
#ifndef TF_HVD_KERNELS_XLA_HANDLERS_H_
#define TF_HVD_KERNELS_XLA_HANDLERS_H_

#include <string>

#include "kernels/xla/compiled_calls.h"

struct XLA_FFI_Api;

namespace tf_hvd {

inline constexpr char kStartTarget[] = "tf_hvd_start";
inline constexpr char kEndTarget[] = "tf_hvd_end";
inline constexpr char kNumberTarget[] = "tf_hvd_number";
inline constexpr char kFingerprintsTarget[] = "tf_hvd_fingerprints";
inline constexpr char kVerdictTarget[] = "tf_hvd_verdict";

// Registers the handlers, for CPUs and GPUs, which call `calls` from then on.
// Once. Returns what XLA found wrong; empty if nothing.
std::string RegisterHandlers(const XLA_FFI_Api* api, CompiledCalls* calls);

// Of RegisterHandlers.
CompiledCalls* RegisteredCalls();

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_XLA_HANDLERS_H_
