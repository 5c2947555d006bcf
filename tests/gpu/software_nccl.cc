#include "tests/gpu/software_nccl.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstring>
#include <iterator>
#include <thread>

#include "kernels/buffer_ops.h"

namespace tf_hvd {
namespace {

constexpr int kUnhandledCudaError = 1;
constexpr int kInvalidArgument = 4;
constexpr int kInvalidUsage = 5;
constexpr int kSomeVersion = 22105;

SoftwareNccl* library = nullptr;

DType DTypeOfNumber(NcclNumber type) {
  constexpr DType kTypes[] = {DType::kInt8,    DType::kUint8,   DType::kInt32,
                              DType::kUint32,  DType::kInt64,   DType::kUint64,
                              DType::kFloat16, DType::kFloat32, DType::kFloat64,
                              DType::kBfloat16};
  return kTypes[static_cast<size_t>(type)];
}

ReduceOp ReduceOpOf(NcclReduction op) {
  constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProduct,
                               ReduceOp::kMax, ReduceOp::kMin};
  return kOps[static_cast<size_t>(op)];
}

size_t BytesOf(size_t count, NcclNumber type) {
  return count * SizeOf(DTypeOfNumber(type));
}

bool Is(const char* name, const char* other) {
  return std::strcmp(name, other) == 0;
}

// Calls between ncclGroupStart and ncclGroupEnd of this thread.
thread_local int group_depth = 0;
thread_local std::vector<ncclComm*> group;

}  // namespace

std::string SoftwareNccl::Call::Describe() const {
  return std::string(name) + " of " + std::to_string(count) + " of type " +
         std::to_string(static_cast<int>(type)) + ", op " +
         std::to_string(static_cast<int>(op)) + ", root " +
         std::to_string(peer);
}

SoftwareNccl::SoftwareNccl(SoftwareGpu* gpu) : gpu_(gpu) {
  assert(library == nullptr);
  library = this;
}

SoftwareNccl::~SoftwareNccl() { library = nullptr; }

void SoftwareNccl::FailAsync(int device, int error) {
  const std::lock_guard<std::mutex> lock(gpu_->mutex());
  failing_[device] = error;
}

void SoftwareNccl::HangAborts(int device) {
  const std::lock_guard<std::mutex> lock(gpu_->mutex());
  hanging_[device] = true;
}

void SoftwareNccl::Release() {
  const std::lock_guard<std::mutex> lock(gpu_->mutex());
  hanging_.clear();
}

int SoftwareNccl::aborts() {
  const std::lock_guard<std::mutex> lock(gpu_->mutex());
  return aborts_;
}

size_t SoftwareNccl::communicators() {
  const std::lock_guard<std::mutex> lock(gpu_->mutex());
  return static_cast<size_t>(
      std::count_if(comms_.begin(), comms_.end(),
                    [](const auto& comm) { return !comm->gone; }));
}

SoftwareNccl::Clique* SoftwareNccl::FindClique(const NcclUniqueId& id,
                                               int ranks) {
  int number = 0;
  std::memcpy(&number, id.bytes, sizeof(number));
  std::unique_ptr<Clique>& clique = cliques_[number];
  if (clique == nullptr) {
    clique = std::make_unique<Clique>();
    clique->number = number;
    clique->devices.assign(static_cast<size_t>(ranks), -1);
  }
  return clique.get();
}

bool SoftwareNccl::Ready(const ncclComm& comm) const {
  const std::vector<int>& devices = comm.clique->devices;
  return std::find(devices.begin(), devices.end(), -1) == devices.end();
}

// In the order in which a device's streams get them, all communicators
// together: kernels of NCCL that wait for each other on two devices, in
// different order, stop both.
void SoftwareNccl::CheckOrder(ncclComm* comm, size_t number) {
  auto& mine = launched_[comm->device];
  mine.emplace_back(comm->clique, number);
  for (const auto& [device, theirs] : launched_) {
    if (device == comm->device) continue;
    const auto shared = [](int with, const auto& all) {
      std::vector<std::pair<Clique*, size_t>> some;
      std::copy_if(all.begin(), all.end(), std::back_inserter(some),
                   [with](const auto& one) {
                     const auto& of = one.first->devices;
                     return std::count(of.begin(), of.end(), with) > 0;
                   });
      return some;
    };
    const auto a = shared(device, mine);
    const auto b = shared(comm->device, theirs);
    const size_t both = std::min(a.size(), b.size());
    if (!std::equal(a.begin(), a.begin() + static_cast<ptrdiff_t>(both),
                    b.begin())) {
      gpu_->Fault("devices " + std::to_string(comm->device) + " and " +
                  std::to_string(device) +
                  " put NCCL's calls on their streams in different order");
    }
  }
}

void SoftwareNccl::Launch(ncclComm* comm, std::vector<Call> calls,
                          CUstream_st* stream) {
  const size_t number = comm->launches++;
  CheckOrder(comm, number);
  auto& together = comm->clique->done_together;
  if (together.size() <= number) together.resize(number + 1);
  Together& all = together[number];
  all.parts.resize(comm->clique->devices.size());
  Part& part = all.parts[static_cast<size_t>(comm->rank)];
  part.calls = std::move(calls);
  part.stream = stream;
  ++gpu_->MutableCounts().collectives;
  const std::string what = std::string("nccl ") + part.calls.front().name;
  gpu_->Put(stream, {what,
                     nullptr,
                     [this, comm, number](CUstream_st*) {
                       if (!comm->aborted) Arrive(comm, number);
                     },
                     {}});
  gpu_->Put(stream, {what,
                     [comm, number] {
                       return comm->aborted ||
                              comm->clique->done_together[number].computed;
                     },
                     [this, comm, number](CUstream_st*) {
                       if (!comm->aborted) Finish(comm, number);
                     },
                     {}});
}

void SoftwareNccl::Arrive(ncclComm* comm, size_t number) {
  Together& all = comm->clique->done_together[number];
  Part& part = all.parts[static_cast<size_t>(comm->rank)];
  part.clock = part.stream->clock;
  for (const Call& call : part.calls) {
    const size_t one = BytesOf(call.count, call.type);
    const size_t whole = one * all.parts.size();
    const bool reads = !Is(call.name, "receive") &&
                       (!Is(call.name, "broadcast") || call.peer == comm->rank);
    const std::string what = std::string("NCCL's ") + call.name;
    if (reads) {
      all.sound &= gpu_->Touch(part.stream, call.input,
                               Is(call.name, "reduce_scatter") ? whole : one,
                               false, what);
    }
    if (!Is(call.name, "send")) {
      all.sound &=
          gpu_->Touch(part.stream, call.output,
                      Is(call.name, "all_gather") ? whole : one, true, what);
    }
  }
  if (++all.arrived == all.parts.size()) Compute(&all);
}

std::string SoftwareNccl::Part::Describe() const {
  std::string text;
  for (const Call& call : calls) {
    // Each rank has others to send to.
    if (Is(call.name, "send") || Is(call.name, "receive")) return "alltoall";
    text += call.Describe() + "; ";
  }
  return text;
}

// Once all ranks' streams have come to it. Of what is not sound nothing is
// made.
void SoftwareNccl::Compute(Together* all) {
  const std::string first = all->parts[0].Describe();
  for (const Part& part : all->parts) {
    if (part.Describe() == first) continue;
    all->sound = false;
    gpu_->Fault("ranks of a communicator make different calls: " + first +
                " and " + part.Describe());
  }
  for (size_t rank = 0; all->sound && rank < all->parts.size(); ++rank) {
    Part& part = all->parts[rank];
    for (size_t i = 0; i < part.calls.size(); ++i) {
      part.results.push_back(Is(part.calls[i].name, "receive")
                                 ? Received(*all, rank, i)
                                 : Result(*all, rank, i));
    }
  }
  all->computed = true;
}

// What the peer sends to this rank with the as many-th of its sends.
std::vector<char> SoftwareNccl::Received(const Together& all, size_t rank,
                                         size_t i) {
  const Call& call = all.parts[rank].calls[i];
  const auto among = [&](const char* name, size_t of, size_t peer) {
    std::vector<const Call*> found;
    for (const Call& one : all.parts[of].calls) {
      if (Is(one.name, name) && one.peer == static_cast<int>(peer)) {
        found.push_back(&one);
      }
    }
    return found;
  };
  const auto peer = static_cast<size_t>(call.peer);
  const auto mine = among("receive", rank, peer);
  const auto theirs = among("send", peer, rank);
  const auto place = static_cast<size_t>(
      std::find(mine.begin(), mine.end(), &call) - mine.begin());
  if (place >= theirs.size() || theirs[place]->count != call.count) {
    gpu_->Fault("a receive that nobody sends to");
    return {};
  }
  const auto* const sent = static_cast<const char*>(theirs[place]->input);
  return {sent, sent + BytesOf(call.count, call.type)};
}

std::vector<char> SoftwareNccl::Result(const Together& all, size_t rank,
                                       size_t i) const {
  const Call& call = all.parts[rank].calls[i];
  const size_t bytes = BytesOf(call.count, call.type);
  const auto input_of = [&](size_t other) {
    return static_cast<const char*>(all.parts[other].calls[i].input);
  };
  if (Is(call.name, "send")) return {};
  if (Is(call.name, "broadcast")) {
    const char* const root = input_of(static_cast<size_t>(call.peer));
    return {root, root + bytes};
  }
  std::vector<char> result;
  std::vector<const void*> inputs;
  const size_t offset = Is(call.name, "reduce_scatter") ? rank * bytes : 0;
  for (size_t other = 0; other < all.parts.size(); ++other) {
    inputs.push_back(input_of(other) + offset);
    if (Is(call.name, "all_gather")) {
      result.insert(result.end(), input_of(other), input_of(other) + bytes);
    }
  }
  if (Is(call.name, "all_gather")) return result;
  result.resize(bytes);
  ReduceOptions options;
  options.dtype = DTypeOfNumber(call.type);
  options.op = ReduceOpOf(call.op);
  ReduceInputs(options, inputs, static_cast<int64_t>(call.count),
               result.data());
  return result;
}

void SoftwareNccl::Finish(ncclComm* comm, size_t number) {
  Together& all = comm->clique->done_together[number];
  Part& part = all.parts[static_cast<size_t>(comm->rank)];
  for (const Part& other : all.parts) part.stream->clock.Join(other.clock);
  for (size_t i = 0; i < part.results.size(); ++i) {
    const std::vector<char>& result = part.results[i];
    if (result.empty() ||
        !gpu_->Touch(part.stream, part.calls[i].output, result.size(), true,
                     std::string("NCCL's ") + part.calls[i].name)) {
      continue;
    }
    std::memcpy(part.calls[i].output, result.data(), result.size());
  }
}

// NCCL's functions. A friend of the library.
struct SoftwareNcclCalls {
  using Call = SoftwareNccl::Call;
  using Lock = std::unique_lock<std::mutex>;

  static SoftwareGpu& Gpu() { return *library->gpu_; }

  static int GetUniqueId(NcclUniqueId* id) {
    const Lock lock(Gpu().mutex());
    *id = {};
    const int number = ++library->next_id_;
    std::memcpy(id->bytes, &number, sizeof(number));
    return 0;
  }
  static int Init(NcclComm* comm, int ranks, NcclUniqueId id, int rank,
                  NcclConfig* config) {
    const Lock lock(Gpu().mutex());
    if (config->magic != 0xcafebeef || config->blocking != 0) {
      return kInvalidUsage;
    }
    const int device = Gpu().CurrentDevice();
    if (device < 0) return kUnhandledCudaError;
    auto made = std::make_unique<ncclComm>();
    made->clique = library->FindClique(id, ranks);
    std::vector<int>& devices = made->clique->devices;
    if (std::count(devices.begin(), devices.end(), device) > 0) {
      Gpu().Fault("two ranks of a communicator have one device");
    }
    devices[static_cast<size_t>(rank)] = device;
    made->rank = rank;
    made->device = device;
    made->looks_left = static_cast<int>(Gpu().Draw(4));
    *comm = made.get();
    library->comms_.push_back(std::move(made));
    return kNcclInProgress;
  }
  static int GetAsyncError(NcclComm comm, int* error) {
    if (comm == nullptr) return kInvalidArgument;
    const Lock lock(Gpu().mutex());
    Gpu().Advance();
    *error = 0;
    const auto failing = library->failing_.find(comm->device);
    if (failing != library->failing_.end()) {
      *error = failing->second;
    } else if (comm->looks_left > 0) {
      --comm->looks_left;
      *error = kNcclInProgress;
    } else if (!library->Ready(*comm)) {
      *error = kNcclInProgress;
    } else if (!comm->waiting.empty()) {
      library->Launch(comm, std::move(comm->waiting), comm->waiting_on);
      comm->waiting.clear();
    }
    return 0;
  }
  // Some calls are on the stream at once, others only after some looks.
  static int Begin(ncclComm* comm, CUstream_st* stream) {
    comm->looks_left = static_cast<int>(Gpu().Draw(3));
    if (comm->looks_left > 0) {
      comm->waiting_on = stream;
      return kNcclInProgress;
    }
    library->Launch(comm, std::move(comm->waiting), stream);
    comm->waiting.clear();
    return 0;
  }
  static int Add(Call call, NcclComm comm, CudaStream stream) {
    const Lock lock(Gpu().mutex());
    const bool in_group =
        std::find(group.begin(), group.end(), comm) != group.end();
    if (comm->gone || comm->aborted || comm->looks_left > 0 ||
        !library->Ready(*comm) || (!comm->waiting.empty() && !in_group)) {
      Gpu().Fault("a communicator is used that is not ready");
      return kInvalidUsage;
    }
    if (Gpu().CurrentDevice() != comm->device ||
        stream->device != comm->device) {
      Gpu().Fault("a communicator is used with another device");
    }
    comm->waiting.push_back(call);
    comm->waiting_on = stream;
    if (group_depth == 0) return Begin(comm, stream);
    if (!in_group) group.push_back(comm);
    return 0;
  }
  static int GroupStart() {
    ++group_depth;
    return 0;
  }
  static int GroupEnd() {
    if (--group_depth > 0) return 0;
    const Lock lock(Gpu().mutex());
    int result = 0;
    for (ncclComm* comm : group) {
      if (Begin(comm, comm->waiting_on) != 0) result = kNcclInProgress;
    }
    group.clear();
    return result;
  }
  static int Finalize(NcclComm comm) {
    const Lock lock(Gpu().mutex());
    comm->looks_left = static_cast<int>(Gpu().Draw(3));
    return kNcclInProgress;
  }
  static int Destroy(NcclComm comm) {
    const Lock lock(Gpu().mutex());
    if (comm->gone) Gpu().Fault("a communicator is destroyed twice");
    comm->gone = true;
    return 0;
  }
  static int Abort(NcclComm comm) {
    Lock lock(Gpu().mutex());
    ++library->aborts_;
    comm->aborted = true;
    while (library->hanging_[comm->device]) {
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      lock.lock();
    }
    comm->gone = true;
    return 0;
  }
  static const char* GetErrorString(int error) {
    return error == 6 ? "remote process exited or there was a network error"
                      : "an error of software";
  }
  static const char* GetLastError(NcclComm) {
    return "said by a software NCCL";
  }

  static int AllReduce(const void* input, void* output, size_t count,
                       NcclNumber type, NcclReduction op, NcclComm comm,
                       CudaStream stream) {
    return Add({"all_reduce", input, output, count, type, op, 0}, comm, stream);
  }
  static int ReduceScatter(const void* input, void* output, size_t count,
                           NcclNumber type, NcclReduction op, NcclComm comm,
                           CudaStream stream) {
    return Add({"reduce_scatter", input, output, count, type, op, 0}, comm,
               stream);
  }
  static int AllGather(const void* input, void* output, size_t count,
                       NcclNumber type, NcclComm comm, CudaStream stream) {
    return Add({"all_gather", input, output, count, type, {}, 0}, comm, stream);
  }
  static int Broadcast(const void* input, void* output, size_t count,
                       NcclNumber type, int root, NcclComm comm,
                       CudaStream stream) {
    return Add({"broadcast", input, output, count, type, {}, root}, comm,
               stream);
  }
  static int Send(const void* data, size_t count, NcclNumber type, int peer,
                  NcclComm comm, CudaStream stream) {
    return Add({"send", data, nullptr, count, type, {}, peer}, comm, stream);
  }
  static int Receive(void* data, size_t count, NcclNumber type, int peer,
                     NcclComm comm, CudaStream stream) {
    return Add({"receive", nullptr, data, count, type, {}, peer}, comm, stream);
  }
};

const NcclApi* SoftwareNccl::Api() {
  using Calls = SoftwareNcclCalls;
  static const NcclApi api = [] {
    NcclApi table;
    table.get_version = [](int* version) {
      *version = kSomeVersion;
      return 0;
    };
    table.get_unique_id = Calls::GetUniqueId;
    table.comm_init_rank_config = Calls::Init;
    table.comm_get_async_error = Calls::GetAsyncError;
    table.comm_finalize = Calls::Finalize;
    table.comm_destroy = Calls::Destroy;
    table.comm_abort = Calls::Abort;
    table.get_error_string = Calls::GetErrorString;
    table.get_last_error = Calls::GetLastError;
    table.all_reduce = Calls::AllReduce;
    table.reduce_scatter = Calls::ReduceScatter;
    table.all_gather = Calls::AllGather;
    table.broadcast = Calls::Broadcast;
    table.send = Calls::Send;
    table.receive = Calls::Receive;
    table.group_start = Calls::GroupStart;
    table.group_end = Calls::GroupEnd;
    return table;
  }();
  return &api;
}

}  // namespace tf_hvd
