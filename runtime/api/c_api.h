// The C API: what Python reaches through ctypes, and the default runtime that
// TensorFlow's kernels submit to: what a process has once is listed in
// CONTRIBUTING.md.
#ifndef TF_HVD_RUNTIME_API_C_API_H_
#define TF_HVD_RUNTIME_API_C_API_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "runtime/api/runtime.h"

#define TF_HVD_EXPORT __attribute__((visibility("default")))

extern "C" {

// What the runtime starts from. With all of it zero: all processes that the
// launcher has started, and no process sets.
struct tf_hvd_init_options {
  const char* library_dir;      // where the shims for the MPI families lie
  const char* mpi_candidates;   // paths of libmpi to try after the configured
                                // one, separated by '\n'
  const char* nccl_candidates;  // paths of libnccl.so.2 to try, likewise
  const int* ranks;  // of MPI_COMM_WORLD, the job's only ones; null: all
  int rank_count;
  const int* communicator;  // Fortran handle of the job's, whose ranks are
                            // `ranks`; null: none
  const int* sets;          // what init must be given alike on all ranks: each
                            // process set's ranks, then -1; -2 for ranks that
                            // a communicator gives
  int set_length;
  const char* settings;  // what must be equal on all ranks, besides the
                         // runtime's own: "name=value", each ended by '\n'
};

// Starts the default runtime; a second call does nothing. Returns 0, or a
// StatusCode with the text in `error` (cut to `error_bytes`), as all functions
// with these two arguments do.
TF_HVD_EXPORT int tf_hvd_init(const tf_hvd_init_options* options, char* error,
                              size_t error_bytes);

// Ends the default runtime; does nothing if there is none. After it init may
// be called again only where the transport allows it (one rank, or an MPI
// that stays initialised). Does nothing in a forked child, and while another
// thread is in init: nobody could end that wait. The other ranks are told
// `reason`; `through` is not 0 if this one has made all calls that it wanted
// to, rather than failed.
TF_HVD_EXPORT void tf_hvd_shutdown(const char* reason, int through);

// Why a process that was forked from a rank cannot call collectives; empty
// elsewhere. Owned by the library, valid until the next call on this thread.
TF_HVD_EXPORT const char* tf_hvd_forked_text();

// What a rank writes into the environment of the processes that it starts, so
// that they do not take its place. Owned by the library, valid until the next
// call on this thread.
TF_HVD_EXPORT const char* tf_hvd_process_mark();

TF_HVD_EXPORT int tf_hvd_is_initialized();

// Why no more calls can be made in the job that this process is in; empty while
// they can. Owned by the library, valid until the next call on this thread.
TF_HVD_EXPORT const char* tf_hvd_end_text();

// Why there is no runtime to use: before init, or after shutdown.
TF_HVD_EXPORT const char* tf_hvd_not_initialized_text();

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

// The version of the NCCL that this process would use, 22105 for 2.21.5; 0 if
// there is none, or no CUDA driver. `nccl_candidates`: as for init, which need
// not have been called.
TF_HVD_EXPORT int tf_hvd_nccl_version(const char* nccl_candidates);

// 1 if every rank has a CUDA driver, so that tensors may lie on GPUs; 0 if not,
// or not initialised.
TF_HVD_EXPORT int tf_hvd_gpus_on_all_ranks();

// 1 if this build has code for GPUs.
TF_HVD_EXPORT int tf_hvd_cuda_built();

// What there is, for `tf_hvd doctor`; init need not have been called. The GPUs,
// the driver and NCCL: the lines of runtime/transport/gpu/report.h. Owned
// by the library, valid until the next call on this thread.
TF_HVD_EXPORT const char* tf_hvd_gpu_report(const char* nccl_candidates);
// Opens the MPI that init would, and does not start it. `path` and `version`
// get the file and its own line; a failure is init's.
TF_HVD_EXPORT int tf_hvd_find_mpi(const tf_hvd_init_options* options,
                                  char* path, size_t path_bytes, char* version,
                                  size_t version_bytes, char* error,
                                  size_t error_bytes);
// The bytes of shared memory that so many ranks on one machine take, besides
// MPI's own, as the environment sets it; 0 if a setting is none.
TF_HVD_EXPORT int64_t tf_hvd_shared_bytes(int ranks);
// Whether each setting in the environment is one; a failure is init's.
TF_HVD_EXPORT int tf_hvd_check_settings(char* error, size_t error_bytes);

// Process sets. All ranks call these alike, and each call waits for them.
// `ranks` are ascending; `set` gets the number of the new set.
TF_HVD_EXPORT int tf_hvd_add_process_set(const int* ranks, int count, int* set,
                                         char* error, size_t error_bytes);
TF_HVD_EXPORT int tf_hvd_remove_process_set(int set, char* error,
                                            size_t error_bytes);
// Before an add of a set of which each rank knows its own part only: what each
// rank gives, followed by -1, in the order of ranks. `length`: how many numbers
// that makes, of which `capacity` are written at most.
TF_HVD_EXPORT int tf_hvd_gather_ranks(const int* ranks, int count, int* all,
                                      int capacity, int* length, char* error,
                                      size_t error_bytes);
// The ranks of a set, `capacity` of them at most. Returns how many there are;
// -1 if there is no such set.
TF_HVD_EXPORT int tf_hvd_process_set_ranks(int set, int* ranks, int capacity);

// Requests that this rank has submitted since init; -1 when not initialised.
// The guard of v1 optimizers asks for it at each eager update, to see whether
// anything was submitted since the last one (tf_hvd/training/v1_guard.py);
// tests, to see how often TensorFlow runs an op.
TF_HVD_EXPORT int64_t tf_hvd_submitted_count();

// Writes the first `count` of this process's counters (base/counters.h)
// and returns how many there are. For tests.
TF_HVD_EXPORT int tf_hvd_counters(int64_t* values, int count);

// Notes a list of sources (runtime/request/sources.h) under the number `list`:
// the number in this process of each source's variable (0: it is none), its
// place in the whole list, and its name, each of them ended by '\n'.
TF_HVD_EXPORT void tf_hvd_note_sources(int64_t list, const int64_t* variables,
                                       const int64_t* places, const char* names,
                                       int count);
// Takes a list back, or what is known of a variable that is gone.
TF_HVD_EXPORT void tf_hvd_forget_sources(int64_t list);
TF_HVD_EXPORT void tf_hvd_forget_variable(int64_t variable);

// Begins a timeline of this rank (runtime/events/timeline.h), and ends it; the
// latter does nothing where there is none.
TF_HVD_EXPORT int tf_hvd_start_timeline(const char* path, int mark_cycles,
                                        char* error, size_t error_bytes);
TF_HVD_EXPORT void tf_hvd_stop_timeline();

// What this rank's collectives have taken (MetricsTotals of
// runtime/events/metrics.h, in the order in which they stand there), `capacity`
// numbers at most.
TF_HVD_EXPORT int tf_hvd_metrics(int64_t* values, int capacity, char* error,
                                 size_t error_bytes);

// Name on the wire of the next eager collective that this thread runs; null
// or "" takes it back. Graph nodes have names of their own and ignore it.
TF_HVD_EXPORT void tf_hvd_set_eager_name(const char* name);

// Where the address of a text is looked for that says from which line of the
// program the next eager collective of this thread comes ("train.py:88"), for
// the recorder; null there: not known. The text must stay.
TF_HVD_EXPORT void* tf_hvd_eager_source();

// The tables, for the Python copies' tests and docs/config.md. Static text.
TF_HVD_EXPORT const char* tf_hvd_config_markdown();
TF_HVD_EXPORT const char* tf_hvd_dtype_name(int dtype);   // null: no such type
TF_HVD_EXPORT const char* tf_hvd_reduce_op_name(int op);  // null: no such op
// 1 if the reduction is defined for the type; 0 also for numbers of neither.
TF_HVD_EXPORT int tf_hvd_is_reducible(int dtype, int op);

}  // extern "C"

namespace tf_hvd {

// The default runtime, or null when not initialised. Shared: shutdown on one
// thread does not pull it away under another.
std::shared_ptr<Runtime> DefaultRuntime();

// The same; an error where that is null.
Status FindDefaultRuntime(std::shared_ptr<Runtime>* runtime);

// The text of the error that every use before init, or after shutdown, gets.
const char* NotInitializedText();

// Takes the name set by tf_hvd_set_eager_name on this thread ("" if none).
std::string TakeEagerName();

// The text in tf_hvd_eager_source of this thread ("" if none), which is then
// none's any more.
std::string_view TakeEagerSource();

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_API_C_API_H_
