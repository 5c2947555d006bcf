#include "runtime/api/c_api.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/counters.h"
#include "base/forks.h"
#include "base/main_thread.h"
#include "base/mutex.h"
#include "base/processes.h"
#include "base/types.h"
#include "compute/buffer_ops.h"
#include "runtime/api/bootstrap.h"
#include "runtime/api/launcher_watch.h"
#include "runtime/api/set_calls.h"
#include "runtime/request/sources.h"
#include "runtime/transport/gpu/devices.h"
#include "runtime/transport/gpu/libraries.h"
#include "runtime/transport/gpu/report.h"
#include "runtime/transport/mpi/world.h"
#include "runtime/transport/segment/segment.h"

namespace tf_hvd {
namespace {

// The default runtime, and whether init or shutdown is in progress.
struct Global {
  Mutex init_mutex;  // one init or shutdown at a time
  std::atomic<bool> in_init{false};
  // Written by init and shutdown, which also hold init_mutex.
  StartedJob job GUARDED_BY(ForkSafeMutex());
  // Since the last init.
  bool shut_down GUARDED_BY(ForkSafeMutex()) = false;
};

// Never destroyed: kernels may still use it while the process exits.
Global& TheGlobal() {
  static auto* const global = new Global;
  return *global;
}

const char*& EagerSource() {
  static thread_local const char* source = nullptr;
  return source;
}

std::string& EagerName() {
  thread_local std::string name;
  return name;
}

std::vector<int32_t> Numbers(const int* numbers, int count) {
  return numbers == nullptr ? std::vector<int32_t>()
                            : std::vector<int32_t>(numbers, numbers + count);
}

std::vector<std::string> Lines(const char* text) {
  std::vector<std::string> lines;
  std::string line;
  for (const char* c = text == nullptr ? "" : text;; ++c) {
    if (*c != '\n' && *c != '\0') {
      line += *c;
      continue;
    }
    if (!line.empty()) lines.push_back(std::exchange(line, ""));
    if (*c == '\0') return lines;
  }
}

// Everything except the settings from the environment.
WorldOptions OptionsOf(const tf_hvd_init_options& given) {
  WorldOptions options;
  options.library_dir = given.library_dir == nullptr ? "" : given.library_dir;
  options.candidates = Lines(given.mpi_candidates);
  options.nccl_candidates = Lines(given.nccl_candidates);
  if (given.ranks != nullptr) {
    options.members.ranks = Numbers(given.ranks, given.rank_count);
  }
  if (given.communicator != nullptr) {
    options.members.communicator = *given.communicator;
  }
  for (const std::string& line : Lines(given.settings)) {
    const size_t end = line.find('=');
    if (end == std::string::npos) continue;
    options.settings.emplace_back(line.substr(0, end), line.substr(end + 1));
  }
  return options;
}

// Never destroyed, because its signal handler stays installed. Null if no
// handler is installed.
MainThread* TheMainThread(const tf_hvd_init_options& given) {
  static auto* const main_thread =
      given.frames_signal == 0
          ? nullptr
          : new MainThread(given.frames_signal, given.frames_file,
                           Lines(given.others_files));
  return main_thread;
}

// Writes as much of `from` as fits.
void CopyNumbers(const std::vector<int32_t>& from, int* to, int capacity) {
  const size_t room = capacity < 0 ? 0 : static_cast<size_t>(capacity);
  std::copy_n(from.begin(), std::min(from.size(), room), to);
}

// True while an object of this class exists.
class InInit {
 public:
  explicit InInit(std::atomic<bool>* flag) : flag_(flag) { *flag_ = true; }
  ~InInit() { *flag_ = false; }
  InInit(const InInit&) = delete;
  InInit& operator=(const InInit&) = delete;

 private:
  std::atomic<bool>* const flag_;
};

Status Init(const tf_hvd_init_options& given) {
  Global& global = TheGlobal();
  const MutexLock lock(&global.init_mutex);
  if (DefaultRuntime() != nullptr) return Status::Ok();
  const InInit in_init(&global.in_init);
  TheSources()->Restart();
  JobOptions options;
  options.sets = Numbers(given.sets, given.set_length);
  options.main_thread = TheMainThread(given);
  options.hurry = given.hurry;
  StartedJob job;
  TF_HVD_RETURN_IF_ERROR(StartJob(OptionsOf(given), options, &job));
  const MutexLock runtime_lock(ForkSafeMutex());
  global.job = std::move(job);
  global.shut_down = false;
  return Status::Ok();
}

void Shutdown(const std::string& reason, bool through) {
  Global& global = TheGlobal();
  if (InForkedChild()) return;
  while (!global.init_mutex.TryLock()) {
    if (global.in_init) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const MutexLock lock(&global.init_mutex, std::adopt_lock);
  std::shared_ptr<Runtime> runtime = DefaultRuntime();
  if (runtime == nullptr) return MpiSession::FinalizeLeftover();
  runtime->Shutdown(reason, through);
  // Destroyed after the lock is released. `runtime` may be the last reference,
  // and the watch waits for its thread.
  std::unique_ptr<LauncherWatch> launcher;
  const MutexLock runtime_lock(ForkSafeMutex());
  launcher = std::move(global.job.launcher);
  global.job.runtime.reset();
  global.shut_down = true;
}

// Empty when not initialised, and without MPI.
MpiInfo TheMpi() {
  Global& global = TheGlobal();
  const MutexLock lock(ForkSafeMutex());
  return global.job.runtime == nullptr ? MpiInfo() : global.job.mpi;
}

// Converts a status to the C API's return value and text.
int Report(const Status& status, char* error, size_t error_bytes) {
  if (!status.ok() && error != nullptr) {
    std::snprintf(error, error_bytes, "%s", status.message().c_str());
  }
  return static_cast<int>(status.code());
}

// The result of `call` with the default runtime.
template <typename Call>
int WithRuntime(const Call& call, char* error, size_t error_bytes) {
  std::shared_ptr<Runtime> runtime;
  const Status found = FindDefaultRuntime(&runtime);
  return Report(found.ok() ? call(runtime.get()) : found, error, error_bytes);
}

// Empty where init would fail.
GpuLibraries LibrariesOfGpus(const char* nccl_candidates) {
  Config config;
  const Status read = ReadConfig(&config);
  if (!read.ok()) {
    GpuLibraries none;
    none.no_cuda = none.no_nccl = read.message();
    return none;
  }
  return OpenGpuLibraries({config.cuda_library, config.nccl_library,
                           config.use_nccl, Lines(nccl_candidates)});
}

int FromTopology(int (*get)(const Topology&)) {
  const auto runtime = DefaultRuntime();
  return runtime == nullptr ? -1 : get(runtime->topology());
}

}  // namespace

std::shared_ptr<Runtime> DefaultRuntime() {
  Global& global = TheGlobal();
  const MutexLock lock(ForkSafeMutex());
  return global.job.runtime;
}

Status FindDefaultRuntime(std::shared_ptr<Runtime>* runtime) {
  *runtime = DefaultRuntime();
  return *runtime != nullptr ? Status::Ok()
                             : FailedPrecondition(NotInitializedText());
}

const char* NotInitializedText() {
  Global& global = TheGlobal();
  const MutexLock lock(ForkSafeMutex());
  return global.shut_down
             ? "tf_hvd has been shut down; call hvd.shutdown() last, or leave "
               "it to the end of the program"
             : "tf_hvd has not been initialized; call hvd.init() first";
}

std::string_view TakeEagerSource() {
  const char* const source = std::exchange(EagerSource(), nullptr);
  return source == nullptr ? std::string_view() : source;
}

std::string TakeEagerName() { return std::exchange(EagerName(), ""); }

}  // namespace tf_hvd

using tf_hvd::Topology;

extern "C" {

int tf_hvd_init(const tf_hvd_init_options* options, char* error,
                size_t error_bytes) {
  return tf_hvd::Report(tf_hvd::Init(*options), error, error_bytes);
}

void tf_hvd_shutdown(const char* reason, int through) {
  tf_hvd::Shutdown(reason, through != 0);
}

const char* tf_hvd_forked_text() {
  thread_local std::string text;
  const auto runtime = tf_hvd::DefaultRuntime();
  text = runtime != nullptr && tf_hvd::InForkedChild()
             ? tf_hvd::ForkedText(runtime->topology().rank)
             : "";
  return text.c_str();
}

const char* tf_hvd_process_mark() {
  thread_local std::string text;
  const auto self = tf_hvd::FindProcess(getpid());
  text = self ? tf_hvd::MarkOf(*self) : "";
  return text.c_str();
}

const char* tf_hvd_not_initialized_text() {
  return tf_hvd::NotInitializedText();
}

const char* tf_hvd_end_text() {
  thread_local std::string text;
  const auto runtime = tf_hvd::DefaultRuntime();
  text =
      runtime == nullptr || tf_hvd::InForkedChild() ? "" : runtime->EndText();
  return text.c_str();
}

int tf_hvd_is_initialized() { return tf_hvd::DefaultRuntime() != nullptr; }

int tf_hvd_rank() {
  return tf_hvd::FromTopology([](const Topology& t) { return t.rank; });
}
int tf_hvd_size() {
  return tf_hvd::FromTopology([](const Topology& t) { return t.size; });
}
int tf_hvd_local_rank() {
  return tf_hvd::FromTopology([](const Topology& t) { return t.LocalRank(); });
}
int tf_hvd_local_size() {
  return tf_hvd::FromTopology([](const Topology& t) { return t.LocalSize(); });
}
int tf_hvd_cross_rank() {
  return tf_hvd::FromTopology([](const Topology& t) { return t.CrossRank(); });
}
int tf_hvd_cross_size() {
  return tf_hvd::FromTopology([](const Topology& t) { return t.CrossSize(); });
}
int tf_hvd_is_homogeneous() {
  return tf_hvd::FromTopology(
      [](const Topology& t) { return t.Homogeneous() ? 1 : 0; });
}

int tf_hvd_nccl_version(const char* nccl_candidates) {
  const tf_hvd::GpuLibraries libraries =
      tf_hvd::LibrariesOfGpus(nccl_candidates);
  return libraries.nccl == nullptr ? 0 : libraries.nccl_version;
}

int tf_hvd_cuda_built() { return tf_hvd::HasCodeForGpus() ? 1 : 0; }

const char* tf_hvd_gpu_report(const char* nccl_candidates) {
  thread_local std::string text;
  text = tf_hvd::GpuReport(tf_hvd::LibrariesOfGpus(nccl_candidates));
  return text.c_str();
}

int tf_hvd_find_mpi(const tf_hvd_init_options* options, char* path,
                    size_t path_bytes, char* version, size_t version_bytes,
                    char* error, size_t error_bytes) {
  tf_hvd::MpiInfo found;
  const tf_hvd::Status status =
      tf_hvd::FindMpi(tf_hvd::OptionsOf(*options), &found);
  std::snprintf(path, path_bytes, "%s", found.library.c_str());
  std::snprintf(version, version_bytes, "%s", found.version.c_str());
  return tf_hvd::Report(status, error, error_bytes);
}

int64_t tf_hvd_shared_bytes(int ranks) {
  tf_hvd::Config config;
  if (!tf_hvd::ReadConfig(&config).ok()) return 0;
  return static_cast<int64_t>(
      tf_hvd::ShmSegment::BytesFor({ranks, config.node_data_shm}));
}

int tf_hvd_check_settings(char* error, size_t error_bytes) {
  tf_hvd::Config config;
  return tf_hvd::Report(tf_hvd::ReadConfig(&config), error, error_bytes);
}

int tf_hvd_gpus_on_all_ranks() {
  const auto runtime = tf_hvd::DefaultRuntime();
  if (runtime == nullptr || runtime->gpus() == nullptr) return 0;
  return runtime->gpus()->on_all_ranks() ? 1 : 0;
}

const char* tf_hvd_mpi_version() {
  thread_local std::string text;
  text = tf_hvd::TheMpi().version;
  return text.c_str();
}

int tf_hvd_mpi_threads_supported() {
  const tf_hvd::MpiInfo mpi = tf_hvd::TheMpi();
  if (mpi.version.empty()) return -1;
  return mpi.threads_multiple ? 1 : 0;
}

int tf_hvd_add_process_set(const int* ranks, int count, int* set, char* error,
                           size_t error_bytes) {
  return tf_hvd::WithRuntime(
      [&](tf_hvd::Runtime* runtime) {
        return tf_hvd::AddSet(runtime, tf_hvd::Numbers(ranks, count), set);
      },
      error, error_bytes);
}

int tf_hvd_remove_process_set(int set, char* error, size_t error_bytes) {
  return tf_hvd::WithRuntime(
      [&](tf_hvd::Runtime* runtime) { return tf_hvd::RemoveSet(runtime, set); },
      error, error_bytes);
}

int tf_hvd_start_timeline(const char* path, int mark_cycles, char* error,
                          size_t error_bytes) {
  return tf_hvd::WithRuntime(
      [&](tf_hvd::Runtime* runtime) {
        return runtime->StartTimeline(path, mark_cycles != 0);
      },
      error, error_bytes);
}

void tf_hvd_stop_timeline() {
  const auto runtime = tf_hvd::DefaultRuntime();
  if (runtime != nullptr) runtime->StopTimeline();
}

int tf_hvd_metrics(int64_t* values, int capacity, char* error,
                   size_t error_bytes) {
  return tf_hvd::WithRuntime(
      [&](tf_hvd::Runtime* runtime) {
        tf_hvd::MetricsTotals totals;
        TF_HVD_RETURN_IF_ERROR(runtime->ReadMetrics(&totals));
        std::vector<int64_t> all = {
            totals.counted_ns,    totals.calls,      totals.failed,
            totals.bytes,         totals.in_flight,  totals.dropped,
            totals.steps,         totals.step_bytes, totals.step_ns,
            totals.collective_ns, totals.transfer_ns};
        all.insert(all.end(), totals.waiting_ns.begin(),
                   totals.waiting_ns.end());
        all.resize(std::min(all.size(), static_cast<size_t>(capacity)));
        std::copy(all.begin(), all.end(), values);
        return tf_hvd::Status::Ok();
      },
      error, error_bytes);
}

int tf_hvd_gather_ranks(const int* ranks, int count, int* all, int capacity,
                        int* length, char* error, size_t error_bytes) {
  return tf_hvd::WithRuntime(
      [&](tf_hvd::Runtime* runtime) {
        std::vector<std::vector<int32_t>> lists;
        TF_HVD_RETURN_IF_ERROR(tf_hvd::GatherRanks(
            runtime, tf_hvd::Numbers(ranks, count), &lists));
        std::vector<int32_t> flat;
        for (const auto& list : lists) {
          flat.insert(flat.end(), list.begin(), list.end());
          flat.push_back(tf_hvd::kSetEnd);
        }
        tf_hvd::CopyNumbers(flat, all, capacity);
        *length = static_cast<int>(flat.size());
        return tf_hvd::Status::Ok();
      },
      error, error_bytes);
}

int tf_hvd_process_set_ranks(int set, int* ranks, int capacity) {
  const auto runtime = tf_hvd::DefaultRuntime();
  if (runtime == nullptr) return -1;
  const tf_hvd::SetMembers members = runtime->SetRanks(set);
  if (members == nullptr) return -1;
  tf_hvd::CopyNumbers(*members, ranks, capacity);
  return static_cast<int>(members->size());
}

int64_t tf_hvd_submitted_count() {
  const auto runtime = tf_hvd::DefaultRuntime();
  return runtime == nullptr ? -1 : runtime->SubmittedCount();
}

int tf_hvd_counters(int64_t* values, int count) {
  for (size_t i = 0; i < tf_hvd::kCounters && static_cast<int>(i) < count;
       ++i) {
    const auto counter = static_cast<tf_hvd::Counted>(i);
    values[i] = static_cast<int64_t>(tf_hvd::CountOf(counter));
  }
  return static_cast<int>(tf_hvd::kCounters);
}

void tf_hvd_note_sources(int64_t list, const int64_t* variables,
                         const int64_t* places, const char* names, int count) {
  std::vector<tf_hvd::Source> sources(static_cast<size_t>(count));
  for (size_t i = 0; i < sources.size(); ++i) {
    const char* const end = std::strchr(names, '\n');
    sources[i] = {variables[i], places[i], std::string(names, end)};
    names = end + 1;
  }
  tf_hvd::TheSources()->Note(list, std::move(sources));
}

void tf_hvd_forget_sources(int64_t list) { tf_hvd::TheSources()->Forget(list); }

void tf_hvd_forget_variable(int64_t variable) {
  tf_hvd::TheSources()->ForgetVariable(variable);
}

void* tf_hvd_eager_source() { return &tf_hvd::EagerSource(); }

void tf_hvd_set_eager_name(const char* name) {
  tf_hvd::EagerName() = name == nullptr ? "" : name;
}

const char* tf_hvd_config_markdown() {
  static const auto* const text = new std::string(tf_hvd::ConfigMarkdown());
  return text->c_str();
}

const char* tf_hvd_dtype_name(int dtype) {
  return dtype >= 0 && dtype < tf_hvd::kDTypeCount
             ? tf_hvd::NameOf(static_cast<tf_hvd::DType>(dtype))
             : nullptr;
}

const char* tf_hvd_reduce_op_name(int op) {
  return op >= 0 && op < tf_hvd::kReduceOpCount
             ? tf_hvd::NameOf(static_cast<tf_hvd::ReduceOp>(op))
             : nullptr;
}

int tf_hvd_is_reducible(int dtype, int op) {
  return tf_hvd_dtype_name(dtype) != nullptr &&
         tf_hvd_reduce_op_name(op) != nullptr &&
         tf_hvd::IsReducible(static_cast<tf_hvd::DType>(dtype),
                             static_cast<tf_hvd::ReduceOp>(op));
}

}  // extern "C"
