// The handlers of XLA's foreign function interface that run collectives of a
// compiled step: they hand them to CompiledCalls. Includes no TensorFlow
// headers.
//
//   target               operands                   results
//   tf_hvd_start         tensors [, step] [, loop]  tensors, outputs, ticket
//   tf_hvd_end           tensors, outputs, ticket   tensors or outputs, ticket
//   tf_hvd_number        -                          number
//   tf_hvd_fingerprints  values                     fingerprints
//   tf_hvd_verdict       wrong                      passed
//
// The last two are not called on a GPU. On a GPU the step and the loop's
// iteration number are omitted, because the host would have to wait for them.
//
// Tensors keep their memory from the start to the end: operands and results of
// the same name are aliased. The ticket is memory that no other call has in the
// meantime; nothing writes to it.
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

// Registers handlers for CPUs and GPUs that call `calls`. Call it once. Returns
// XLA's error text; empty on success.
std::string RegisterHandlers(const XLA_FFI_Api* api, CompiledCalls* calls);

// The text that RegisterHandlers returned.
CompiledCalls* RegisteredCalls();

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_XLA_HANDLERS_H_
