// The C API: what Python reaches through ctypes, and the default runtime that
// TensorFlow's kernels submit to. The only global state of the library.
#ifndef TF_HVD_RUNTIME_C_API_H_
#define TF_HVD_RUNTIME_C_API_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/runtime.h"

#define TF_HVD_EXPORT __attribute__((visibility("default")))

extern "C" {

// Starts the default runtime; a second call does nothing. `mpi_candidates`:
// paths of libmpi to try after the configured one, separated by '\n';
// `library_dir`: where the shims for the MPI families lie. Returns 0, or a
// StatusCode with the text in `error` (cut to `error_bytes`).
TF_HVD_EXPORT int tf_hvd_init(const char* library_dir,
                              const char* mpi_candidates, char* error,
                              size_t error_bytes);

// Ends the default runtime; does nothing if there is none. After it init may
// be called again only where the transport allows it (one rank, or an MPI
// that stays initialised).
TF_HVD_EXPORT void tf_hvd_shutdown(const char* reason);

TF_HVD_EXPORT int tf_hvd_is_initialized();

// Topology; -1 when not initialised.
TF_HVD_EXPORT int tf_hvd_rank();
TF_HVD_EXPORT int tf_hvd_size();
TF_HVD_EXPORT int tf_hvd_local_rank();
TF_HVD_EXPORT int tf_hvd_local_size();
TF_HVD_EXPORT int tf_hvd_cross_rank();
TF_HVD_EXPORT int tf_hvd_cross_size();
TF_HVD_EXPORT int tf_hvd_is_homogeneous();
// Which MPI serves: its version line; empty when none does. Owned by the
// library, valid until the next call on this thread.
TF_HVD_EXPORT const char* tf_hvd_mpi_version();
// 1 if MPI_THREAD_MULTIPLE was provided, 0 if not, -1 if no MPI runs.
TF_HVD_EXPORT int tf_hvd_mpi_threads_supported();

// Collective ops that TensorFlow has run on this rank since init; -1 when not
// initialised. For tests of how the ops are registered.
TF_HVD_EXPORT int64_t tf_hvd_executed_count();

// Name on the wire of the next eager collective that this thread runs; null
// or "" takes it back. Graph nodes have names of their own and ignore it.
TF_HVD_EXPORT void tf_hvd_set_eager_name(const char* name);

// The tables, for the Python copies' tests and docs/config.md. Static text.
TF_HVD_EXPORT const char* tf_hvd_config_markdown();
TF_HVD_EXPORT const char* tf_hvd_dtype_name(int dtype);   // null: no such type
TF_HVD_EXPORT const char* tf_hvd_reduce_op_name(int op);  // null: no such op

}  // extern "C"

namespace tf_hvd {

// The default runtime, or null when not initialised. Shared: shutdown on one
// thread does not pull it away under another.
std::shared_ptr<Runtime> DefaultRuntime();

// The text of the error that every use before init gets.
const char* NotInitializedText();

// Takes the name set by tf_hvd_set_eager_name on this thread ("" if none).
std::string TakeEagerName();

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_C_API_H_
