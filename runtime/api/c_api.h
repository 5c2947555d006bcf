// The C API: the functions that Python calls through ctypes, and the default
// runtime that TensorFlow's kernels submit to. CONTRIBUTING.md lists the state
// that a process has once.
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

// The options of init. All zero: all processes that the launcher has started,
// and no process sets.
struct tf_hvd_init_options {
  const char* library_dir;      // folder of the shims for the MPI families
  const char* mpi_candidates;   // paths of libmpi to try after the configured
                                // one, separated by '\n'
  const char* nccl_candidates;  // paths of libnccl.so.2 to try, likewise
  const int* ranks;  // of MPI_COMM_WORLD, the job's only ones; null: all
  int rank_count;
  const int* communicator;  // Fortran handle of the job's communicator, with
                            // the members `ranks`; null: none
  // Process sets, which must be the same on all ranks: each set's ranks, then
  // -1; -2 for ranks that a communicator gives.
  const int* sets;
  int set_length;
  const char* settings;  // further settings that must be the same on all ranks:
                         // "name=value", each ended by '\n'
  // How the main thread reports its current line (base/main_thread.h): the
  // signal with the handler that writes its frames, 0 for none; the file; and
  // parts of the names of files that are not the program's, separated by '\n'.
  // The first init of a process decides.
  int frames_signal;
  int frames_file;
  const char* others_files;
  int hurry;  // for tests: divides all time limits of waits
};

// Starts the default runtime; a second call does nothing. Returns 0, or a
// StatusCode with the text in `error` (truncated to `error_bytes`), as do all
// functions with these two arguments.
TF_HVD_EXPORT int tf_hvd_init(const tf_hvd_init_options* options, char* error,
                              size_t error_bytes);

// Ends the default runtime; does nothing if there is none. After it init may be
// called again only if the transport allows it (one rank, or an MPI that stays
// initialised). Does nothing in a forked child, nor while another thread is in
// init, because that wait cannot be interrupted. `reason` is reported to the
// other ranks. `through` is 1 if this rank made all of its calls, 0 if it
// failed.
TF_HVD_EXPORT void tf_hvd_shutdown(const char* reason, int through);

// Why a process that was forked from a rank cannot call collectives; empty
// elsewhere. Owned by the library, valid until the next call on this thread.
TF_HVD_EXPORT const char* tf_hvd_forked_text();

// A mark that a rank puts into the environment of the processes that it starts,
// so that they do not take its place. Owned by the library, valid until the
// next call on this thread.
TF_HVD_EXPORT const char* tf_hvd_process_mark();

TF_HVD_EXPORT int tf_hvd_is_initialized();

// Why the job of this process accepts no more calls; empty while it does. Owned
// by the library, valid until the next call on this thread.
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
// The version line of the MPI in use; empty without one. Owned by the library,
// valid until the next call on this thread.
TF_HVD_EXPORT const char* tf_hvd_mpi_version();
// 1 if MPI_THREAD_MULTIPLE was provided, 0 if not, -1 without a running MPI.
TF_HVD_EXPORT int tf_hvd_mpi_threads_supported();

// The version of the NCCL that this process would use, 22105 for 2.21.5; 0
// without NCCL or without a CUDA driver. `nccl_candidates`: as for init, which
// need not have been called.
TF_HVD_EXPORT int tf_hvd_nccl_version(const char* nccl_candidates);

// 1 if every rank has a CUDA driver, so that tensors may be on GPUs; 0 if not,
// or not initialised.
TF_HVD_EXPORT int tf_hvd_gpus_on_all_ranks();

// 1 if this build includes code for GPUs.
TF_HVD_EXPORT int tf_hvd_cuda_built();

// Describes the GPUs, the driver and NCCL for `tf_hvd doctor`, in the lines of
// runtime/transport/gpu/report.h; init need not have been called. Owned by the
// library, valid until the next call on this thread.
TF_HVD_EXPORT const char* tf_hvd_gpu_report(const char* nccl_candidates);
// Loads the MPI that init would use, without starting it. `path` and `version`
// receive the file and MPI's version line. Errors are those of init.
TF_HVD_EXPORT int tf_hvd_find_mpi(const tf_hvd_init_options* options,
                                  char* path, size_t path_bytes, char* version,
                                  size_t version_bytes, char* error,
                                  size_t error_bytes);
// Bytes of shared memory that `ranks` ranks on one machine need, besides MPI's,
// with the settings of the environment; 0 if a setting is invalid.
TF_HVD_EXPORT int64_t tf_hvd_shared_bytes(int ranks);
// Checks the settings in the environment. Errors are those of init.
TF_HVD_EXPORT int tf_hvd_check_settings(char* error, size_t error_bytes);

// Process sets. All ranks make the same calls, and each call waits for all
// ranks. `ranks` are ascending; `set` receives the number of the new set.
TF_HVD_EXPORT int tf_hvd_add_process_set(const int* ranks, int count, int* set,
                                         char* error, size_t error_bytes);
TF_HVD_EXPORT int tf_hvd_remove_process_set(int set, char* error,
                                            size_t error_bytes);
// Called before adding a set if each rank knows only its own part of it.
// Concatenates the ranks' lists, each followed by -1, in the order of ranks.
// `length`: total number of values, of which at most `capacity` are written.
TF_HVD_EXPORT int tf_hvd_gather_ranks(const int* ranks, int count, int* all,
                                      int capacity, int* length, char* error,
                                      size_t error_bytes);
// Writes the ranks of a set, at most `capacity` of them. Returns the number of
// ranks; -1 if the set does not exist.
TF_HVD_EXPORT int tf_hvd_process_set_ranks(int set, int* ranks, int capacity);

// Number of requests that this rank has submitted since init; -1 when not
// initialised. The guard of v1 optimizers reads it at each eager update, to
// detect whether anything was submitted since the last one
// (tf_hvd/training/v1_guard.py). Tests read it to count how often TensorFlow
// runs an op.
TF_HVD_EXPORT int64_t tf_hvd_submitted_count();

// Writes the first `count` of this process's counters (base/counters.h) and
// returns the number of counters. For tests.
TF_HVD_EXPORT int tf_hvd_counters(int64_t* values, int count);

// Registers a list of sources (runtime/request/sources.h) under the number
// `list`. For each source: the number of its variable in this process (0: not a
// variable), its place in the whole list, and its name, ended by '\n'.
TF_HVD_EXPORT void tf_hvd_note_sources(int64_t list, const int64_t* variables,
                                       const int64_t* places, const char* names,
                                       int count);
// Unregisters a list, or a variable that no longer exists.
TF_HVD_EXPORT void tf_hvd_forget_sources(int64_t list);
TF_HVD_EXPORT void tf_hvd_forget_variable(int64_t variable);

// Starts and stops a timeline of this rank (runtime/events/timeline.h).
// Stopping does nothing without a timeline.
TF_HVD_EXPORT int tf_hvd_start_timeline(const char* path, int mark_cycles,
                                        char* error, size_t error_bytes);
TF_HVD_EXPORT void tf_hvd_stop_timeline();

// Writes this rank's collective totals (MetricsTotals of
// runtime/events/metrics.h, in its order), at most `capacity` numbers.
TF_HVD_EXPORT int tf_hvd_metrics(int64_t* values, int capacity, char* error,
                                 size_t error_bytes);

// Sets the name on the wire of the next eager collective of this thread; null
// or "" clears it. Graph nodes have their own names and ignore it.
TF_HVD_EXPORT void tf_hvd_set_eager_name(const char* name);

// Address of the pointer to the source line of this thread's next eager
// collective ("train.py:88"), for the recorder. A null pointer: unknown. The
// text must stay valid.
TF_HVD_EXPORT void* tf_hvd_eager_source();

// The tables, for tests of the Python copies and for docs/config.md. Static
// text.
TF_HVD_EXPORT const char* tf_hvd_config_markdown();
TF_HVD_EXPORT const char* tf_hvd_dtype_name(int dtype);   // null: unknown type
TF_HVD_EXPORT const char* tf_hvd_reduce_op_name(int op);  // null: unknown op
// 1 if the reduction is defined for the type; 0 also for unknown numbers.
TF_HVD_EXPORT int tf_hvd_is_reducible(int dtype, int op);

}  // extern "C"

namespace tf_hvd {

// The default runtime, or null when not initialised. Shared, so that shutdown
// on one thread does not destroy it while another uses it.
std::shared_ptr<Runtime> DefaultRuntime();

// The same, as an error instead of null.
Status FindDefaultRuntime(std::shared_ptr<Runtime>* runtime);

// The error text for every use before init, or after shutdown.
const char* NotInitializedText();

// Returns and clears the name set by tf_hvd_set_eager_name on this thread (""
// if none).
std::string TakeEagerName();

// Returns and clears the text in this thread's tf_hvd_eager_source ("" if
// none).
std::string_view TakeEagerSource();

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_API_C_API_H_
