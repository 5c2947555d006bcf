#include "tests/gpu/counted_calls.h"

#include <mutex>
#include <set>
#include <type_traits>
#include <utility>

namespace tf_hvd {
namespace {

using Names = std::set<std::string>;

const Names& Synchronizing() {
  static const Names names = {
      "cuMemAlloc",
      "cuMemFree",
      "cuMemHostAlloc",
      "cuMemFreeHost",
      "cuDevicePrimaryCtxRetain",
      "cuDevicePrimaryCtxRelease",
      "cuStreamCreateWithPriority",
      "cuStreamDestroy",
      "cuModuleLoadData",
      "cuModuleUnload",
      "cuModuleGetFunction",  // loads the kernel if modules are loaded lazily
      "ncclCommInitRankConfig",
      "ncclCommFinalize",
      "ncclCommDestroy",
      "ncclCommAbort",
  };
  return names;
}

const Names& Allocating() {
  static const Names names = {
      "cuMemAlloc",      "cuMemFree",
      "cuMemHostAlloc",  "cuMemFreeHost",
      "cuEventCreate",   "cuEventDestroy",
      "cuStreamDestroy", "cuStreamCreateWithPriority",
  };
  return names;
}

const Names& Collectives() {
  static const Names names = {"ncclAllReduce", "ncclReduceScatter",
                              "ncclAllGather", "ncclBroadcast",
                              "ncclSend",      "ncclRecv"};
  return names;
}

// The calls of this process.
struct Tally {
  std::mutex mutex;
  std::map<int, std::map<std::string, int64_t>> by_device;  // guarded
};

Tally& TheTally() {
  static auto* const tally = new Tally;
  return *tally;
}

// The tables to which calls are forwarded.
template <typename Table>
Table& Inner() {
  static Table table;
  return table;
}

void Note(const char* name) {
  int device = -1;
  if (Inner<CudaApi>().ctx_get_device(&device) != kCudaSuccess) device = -1;
  Tally& tally = TheTally();
  const std::lock_guard<std::mutex> lock(tally.mutex);
  ++tally.by_device[device][name];
}

template <typename Table, auto kMember, typename Function>
struct Counted;

template <typename Table, auto kMember, typename Result, typename... Arguments>
struct Counted<Table, kMember, Result (*)(Arguments...)> {
  static inline const char* name = "";
  static Result Call(Arguments... arguments) {
    Note(name);
    return (Inner<Table>().*kMember)(arguments...);
  }
};

template <typename Table, auto kMember>
void Count(const char* name, Table* table) {
  using Function = std::remove_reference_t<decltype(table->*kMember)>;
  using Wrapped = Counted<Table, kMember, Function>;
  Wrapped::name = name;
  table->*kMember = Wrapped::Call;
}

}  // namespace

#define TF_HVD_COUNT(Table, name, member) \
  Count<Table, &Table::member>(name, &table)

const CudaApi* CountedCalls::Cuda(const CudaApi* inner) {
  static CudaApi table;
  table = *inner;  // queries are not counted
  Inner<CudaApi>() = *inner;
  TF_HVD_COUNT(CudaApi, "cuDevicePrimaryCtxRetain", device_primary_ctx_retain);
  TF_HVD_COUNT(CudaApi, "cuDevicePrimaryCtxRelease",
               device_primary_ctx_release);
  TF_HVD_COUNT(CudaApi, "cuStreamCreateWithPriority",
               stream_create_with_priority);
  TF_HVD_COUNT(CudaApi, "cuStreamDestroy", stream_destroy);
  TF_HVD_COUNT(CudaApi, "cuStreamWaitEvent", stream_wait_event);
  TF_HVD_COUNT(CudaApi, "cuLaunchHostFunc", launch_host_func);
  TF_HVD_COUNT(CudaApi, "cuEventCreate", event_create);
  TF_HVD_COUNT(CudaApi, "cuEventDestroy", event_destroy);
  TF_HVD_COUNT(CudaApi, "cuEventRecord", event_record);
  TF_HVD_COUNT(CudaApi, "cuEventQuery", event_query);
  TF_HVD_COUNT(CudaApi, "cuMemAlloc", mem_alloc);
  TF_HVD_COUNT(CudaApi, "cuMemFree", mem_free);
  TF_HVD_COUNT(CudaApi, "cuMemHostAlloc", mem_host_alloc);
  TF_HVD_COUNT(CudaApi, "cuMemFreeHost", mem_free_host);
  TF_HVD_COUNT(CudaApi, "cuMemcpyAsync", memcpy_async);
  TF_HVD_COUNT(CudaApi, "cuMemsetD32Async", memset_d32_async);
  TF_HVD_COUNT(CudaApi, "cuModuleLoadData", module_load_data);
  TF_HVD_COUNT(CudaApi, "cuModuleUnload", module_unload);
  TF_HVD_COUNT(CudaApi, "cuModuleGetFunction", module_get_function);
  TF_HVD_COUNT(CudaApi, "cuLaunchKernel", launch_kernel);
  return &table;
}

const NcclApi* CountedCalls::Nccl(const NcclApi* inner) {
  static NcclApi table;
  if (inner == nullptr) return nullptr;
  table = *inner;
  Inner<NcclApi>() = *inner;
  TF_HVD_COUNT(NcclApi, "ncclCommInitRankConfig", comm_init_rank_config);
  TF_HVD_COUNT(NcclApi, "ncclCommFinalize", comm_finalize);
  TF_HVD_COUNT(NcclApi, "ncclCommDestroy", comm_destroy);
  TF_HVD_COUNT(NcclApi, "ncclCommAbort", comm_abort);
  TF_HVD_COUNT(NcclApi, "ncclAllReduce", all_reduce);
  TF_HVD_COUNT(NcclApi, "ncclReduceScatter", reduce_scatter);
  TF_HVD_COUNT(NcclApi, "ncclAllGather", all_gather);
  TF_HVD_COUNT(NcclApi, "ncclBroadcast", broadcast);
  TF_HVD_COUNT(NcclApi, "ncclSend", send);
  TF_HVD_COUNT(NcclApi, "ncclRecv", receive);
  return &table;
}

#undef TF_HVD_COUNT

CallCounts CountedCalls::Of(int device) {
  Tally& tally = TheTally();
  const std::lock_guard<std::mutex> lock(tally.mutex);
  return CallCounts(tally.by_device[device]);
}

namespace {

int64_t SumOf(const CallCounts& counts, const Names& names) {
  int64_t sum = 0;
  for (const std::string& name : names) sum += counts.of(name);
  return sum;
}

}  // namespace

int64_t CallCounts::synchronizations() const {
  return SumOf(*this, Synchronizing());
}

int64_t CallCounts::allocations() const { return SumOf(*this, Allocating()); }

int64_t CallCounts::nccl_calls() const { return SumOf(*this, Collectives()); }

std::string CallCounts::Synchronizations() const {
  std::string text;
  for (const std::string& name : Synchronizing()) {
    if (of(name) == 0) continue;
    text += (text.empty() ? "" : ", ") + name + " " + std::to_string(of(name));
  }
  return text;
}

CallCounts CallCounts::operator-(const CallCounts& before) const {
  auto calls = calls_;
  for (const auto& [name, count] : before.calls_) calls[name] -= count;
  return CallCounts(std::move(calls));
}

}  // namespace tf_hvd
