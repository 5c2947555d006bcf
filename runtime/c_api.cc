#include "runtime/c_api.h"

#include <cstdio>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/config.h"
#include "runtime/transport/mpi_world.h"
#include "runtime/types.h"

namespace tf_hvd {
namespace {

// The only global state.
struct Global {
  std::mutex init_mutex;  // one init or shutdown at a time
  std::mutex mutex;       // guards runtime and mpi
  std::shared_ptr<Runtime> runtime;
  MpiInfo mpi;  // written by init, under both; empty without MPI
};

// Never destroyed: kernels may still ask while the process ends.
Global& TheGlobal() {
  static auto* const global = new Global;
  return *global;
}

std::string& EagerName() {
  thread_local std::string name;
  return name;
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

Status Init(const std::string& library_dir,
            const std::vector<std::string>& candidates) {
  Global& global = TheGlobal();
  const std::lock_guard<std::mutex> lock(global.init_mutex);
  if (DefaultRuntime() != nullptr) return Status::Ok();
  Config config;
  TF_HVD_RETURN_IF_ERROR(ReadConfig(&config));
  LaunchInfo launch;
  TF_HVD_RETURN_IF_ERROR(ReadLaunchInfo(&launch));
  std::unique_ptr<World> world;
  MpiInfo mpi;
  TF_HVD_RETURN_IF_ERROR(
      MakeWorld(config, launch, library_dir, candidates, &world, &mpi));
  auto runtime = std::make_shared<Runtime>(config, std::move(world));
  const std::lock_guard<std::mutex> runtime_lock(global.mutex);
  global.runtime = std::move(runtime);
  global.mpi = std::move(mpi);
  return Status::Ok();
}

// Empty when not initialised, and without MPI.
MpiInfo TheMpi() {
  Global& global = TheGlobal();
  const std::lock_guard<std::mutex> lock(global.mutex);
  return global.runtime == nullptr ? MpiInfo() : global.mpi;
}

int FromTopology(int (*get)(const Topology&)) {
  const auto runtime = DefaultRuntime();
  return runtime == nullptr ? -1 : get(runtime->topology());
}

}  // namespace

std::shared_ptr<Runtime> DefaultRuntime() {
  Global& global = TheGlobal();
  const std::lock_guard<std::mutex> lock(global.mutex);
  return global.runtime;
}

const char* NotInitializedText() {
  return "tf_hvd has not been initialized; call hvd.init() first";
}

std::string TakeEagerName() { return std::exchange(EagerName(), ""); }

}  // namespace tf_hvd

using tf_hvd::Topology;

extern "C" {

int tf_hvd_init(const char* library_dir, const char* mpi_candidates,
                char* error, size_t error_bytes) {
  const tf_hvd::Status status = tf_hvd::Init(
      library_dir == nullptr ? "" : library_dir, tf_hvd::Lines(mpi_candidates));
  if (!status.ok() && error != nullptr) {
    std::snprintf(error, error_bytes, "%s", status.message().c_str());
  }
  return static_cast<int>(status.code());
}

void tf_hvd_shutdown(const char* reason) {
  tf_hvd::Global& global = tf_hvd::TheGlobal();
  const std::lock_guard<std::mutex> lock(global.init_mutex);
  const auto runtime = tf_hvd::DefaultRuntime();
  if (runtime == nullptr) return;
  runtime->Shutdown(reason == nullptr ? "shutdown()" : reason);
  const std::lock_guard<std::mutex> runtime_lock(global.mutex);
  global.runtime.reset();
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

int64_t tf_hvd_executed_count() {
  const auto runtime = tf_hvd::DefaultRuntime();
  return runtime == nullptr ? -1 : runtime->SubmittedCount();
}

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
  return op >= 0 && op <= static_cast<int>(tf_hvd::ReduceOp::kProduct)
             ? tf_hvd::NameOf(static_cast<tf_hvd::ReduceOp>(op))
             : nullptr;
}

}  // extern "C"
