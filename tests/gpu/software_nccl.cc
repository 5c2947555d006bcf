#include "tests/gpu/software_nccl.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstring>
#include <iterator>
#include <thread>

namespace tf_hvd {
namespace {

constexpr int kUnhandledCudaError = 1;
constexpr int kInvalidArgument = 4;
constexpr int kInvalidUsage = 5;
constexpr int kSomeVersion = 22105;

SoftwareNccl* library = nullptr;

// Calls of this thread between ncclGroupStart and ncclGroupEnd.
thread_local int group_depth = 0;
thread_local std::vector<ncclComm*> group;

}  // namespace

SoftwareNccl::SoftwareNccl(SoftwareGpu* gpu, std::unique_ptr<NcclBoard> board)
    : gpu_(gpu), board_(std::move(board)) {
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
  std::unique_lock<std::mutex> lock(gpu_->mutex());
  hanging_.clear();
  while (aborting_ > 0) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    lock.lock();
  }
}

int SoftwareNccl::aborts() {
  const std::lock_guard<std::mutex> lock(gpu_->mutex());
  return aborts_;
}

size_t SoftwareNccl::launches() {
  const std::lock_guard<std::mutex> lock(gpu_->mutex());
  size_t all = 0;
  for (const auto& [device, calls] : launched_) all += calls.size();
  return all;
}

size_t SoftwareNccl::communicators() {
  const std::lock_guard<std::mutex> lock(gpu_->mutex());
  return static_cast<size_t>(
      std::count_if(comms_.begin(), comms_.end(),
                    [](const auto& comm) { return !comm->gone; }));
}

SoftwareNccl::Clique* SoftwareNccl::FindClique(const NcclUniqueId& id,
                                               int ranks) {
  const std::string name = id.bytes;
  std::unique_ptr<Clique>& clique = cliques_[name];
  if (clique == nullptr) {
    clique = std::make_unique<Clique>();
    clique->name = name;
    clique->ranks = static_cast<size_t>(ranks);
  }
  return clique.get();
}

std::string SoftwareNccl::KeyOf(const ncclComm& comm, size_t rank,
                                const std::string& number) {
  return comm.clique->name + "/" + number + "/" + std::to_string(rank);
}

bool SoftwareNccl::AllPosted(const ncclComm& comm, const std::string& number) {
  for (size_t rank = 0; rank < comm.clique->ranks; ++rank) {
    if (!board_->Has(KeyOf(comm, rank, number))) return false;
  }
  return true;
}

bool SoftwareNccl::Ready(ncclComm* comm) {
  comm->all_here = comm->all_here || AllPosted(*comm, "here");
  return comm->all_here;
}

// The order in which a device's streams get calls, over all communicators. If
// two devices get them in different orders, kernels of NCCL wait for each other
// and deadlock.
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
                  " enqueue NCCL's calls on their streams in different orders");
    }
  }
}

void SoftwareNccl::Launch(ncclComm* comm, std::vector<Call> calls,
                          CUstream_st* stream) {
  const size_t number = comm->launches++;
  CheckOrder(comm, number);
  const std::string what = NameOf(calls.front().request.kind);
  gpu_->Put(stream, {what,
                     nullptr,
                     [this, comm, number, calls](CUstream_st* of) {
                       if (!comm->aborted) Arrive(comm, number, calls, of);
                     },
                     {}});
  gpu_->Put(stream, {what,
                     [this, comm, number] {
                       return comm->aborted ||
                              AllPosted(*comm, std::to_string(number));
                     },
                     [this, comm, number, calls](CUstream_st* of) {
                       if (!comm->aborted) Finish(comm, number, calls, of);
                     },
                     {}});
}

// The stream has reached the calls: from now on their outputs are written, and
// the contents of the inputs are sent to the other ranks.
void SoftwareNccl::Arrive(ncclComm* comm, size_t number,
                          const std::vector<Call>& calls, CUstream_st* stream) {
  const size_t ranks = comm->clique->ranks;
  const auto rank = static_cast<size_t>(comm->rank);
  NcclPart part;
  for (const Call& call : calls) {
    const NcclRequest& request = call.request;
    const size_t reads = request.InputBytes(rank, ranks);
    const std::string what = NameOf(request.kind);
    const bool sound = gpu_->Touch(stream, call.input, reads, false, what) &&
                       gpu_->Touch(stream, call.output,
                                   request.OutputBytes(ranks), true, what);
    part.sound = part.sound && sound;
    const auto* const input = static_cast<const char*>(call.input);
    part.requests.push_back(request);
    part.inputs.push_back(sound && reads > 0 ? std::string(input, reads)
                                             : std::string(reads, '\0'));
  }
  const std::string key = KeyOf(*comm, rank, std::to_string(number));
  clocks_[key] = stream->clock;
  board_->Post(key, part.Encode());
}

// All ranks' streams have reached the calls.
void SoftwareNccl::Finish(ncclComm* comm, size_t number,
                          const std::vector<Call>& calls, CUstream_st* stream) {
  const auto rank = static_cast<size_t>(comm->rank);
  std::vector<NcclPart> parts;
  bool sound = true;
  for (size_t other = 0; other < comm->clique->ranks; ++other) {
    const std::string key = KeyOf(*comm, other, std::to_string(number));
    parts.push_back(NcclPart::Decode(board_->Get(key)));
    stream->clock.Join(clocks_[key]);
    sound = sound && parts.back().sound;
    if (parts.back().Describe() == parts.front().Describe()) continue;
    sound = false;
    gpu_->Fault("ranks of a communicator make different calls: " +
                parts.front().Describe() + " and " + parts.back().Describe());
  }
  // All ranks have read the data that was posted two launches ago.
  if (number >= 2) {
    board_->Remove(KeyOf(*comm, rank, std::to_string(number - 2)));
  }
  for (size_t i = 0; sound && i < calls.size(); ++i) {
    std::string wrong;
    const std::string result = ResultOf(parts, rank, i, &wrong);
    if (!wrong.empty()) gpu_->Fault(wrong);
    if (!result.empty() && gpu_->Touch(stream, calls[i].output, result.size(),
                                       true, NameOf(calls[i].request.kind))) {
      std::memcpy(calls[i].output, result.data(), result.size());
    }
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
    std::snprintf(id->bytes, sizeof(id->bytes), "%d.%d", getpid(),
                  ++library->next_id_);
    return 0;
  }
  static int Init(NcclComm* comm, int ranks, NcclUniqueId id, int rank,
                  NcclConfig* config) {
    Lock lock(Gpu().mutex());
    if (config->magic != 0xcafebeef) return kInvalidUsage;
    const int device = Gpu().CurrentDevice();
    if (device < 0) return kUnhandledCudaError;
    auto made = std::make_unique<ncclComm>();
    made->clique = library->FindClique(id, ranks);
    if (!made->clique->devices.insert(device).second) {
      Gpu().Fault("two ranks of a communicator have one device");
    }
    made->rank = rank;
    made->device = device;
    library->board_->Post(
        SoftwareNccl::KeyOf(*made, static_cast<size_t>(rank), "here"), "");
    made->blocking = config->blocking != 0;
    made->looks_left = made->blocking ? 0 : static_cast<int>(Gpu().Draw(4));
    *comm = made.get();
    library->comms_.push_back(std::move(made));
    if (!(*comm)->blocking) return kNcclInProgress;
    while (!library->Ready(*comm)) {
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      lock.lock();
    }
    return 0;
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
    } else if (!library->Ready(comm)) {
      *error = kNcclInProgress;
    } else if (!comm->waiting.empty()) {
      library->Launch(comm, std::move(comm->waiting), comm->waiting_on);
      comm->waiting.clear();
    }
    return 0;
  }
  // Some calls are on the stream at once, others only after some queries,
  // except on a blocking communicator.
  static int Begin(ncclComm* comm, CUstream_st* stream) {
    comm->looks_left = comm->blocking ? 0 : static_cast<int>(Gpu().Draw(3));
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
        !library->Ready(comm) || (!comm->waiting.empty() && !in_group)) {
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
    if (comm->blocking) return 0;
    comm->looks_left = static_cast<int>(Gpu().Draw(3));
    return kNcclInProgress;
  }
  static int Destroy(NcclComm comm) {
    const Lock lock(Gpu().mutex());
    if (comm->gone) Gpu().Fault("a communicator is destroyed twice");
    comm->gone = true;
    NcclBoard* const board = library->board_.get();
    const auto rank = static_cast<size_t>(comm->rank);
    board->Post(SoftwareNccl::KeyOf(*comm, rank, "gone"), "");
    if (library->AllPosted(*comm, "gone")) {
      board->RemoveAll(comm->clique->name + "/");
    }
    return 0;
  }
  static int Abort(NcclComm comm) {
    Lock lock(Gpu().mutex());
    ++library->aborts_;
    ++library->aborting_;
    comm->aborted = true;
    while (library->hanging_[comm->device]) {
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      lock.lock();
    }
    --library->aborting_;
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
    return Add({{NcclKind::kAllReduce, count, type, op, 0}, input, output},
               comm, stream);
  }
  static int ReduceScatter(const void* input, void* output, size_t count,
                           NcclNumber type, NcclReduction op, NcclComm comm,
                           CudaStream stream) {
    return Add({{NcclKind::kReduceScatter, count, type, op, 0}, input, output},
               comm, stream);
  }
  static int AllGather(const void* input, void* output, size_t count,
                       NcclNumber type, NcclComm comm, CudaStream stream) {
    return Add({{NcclKind::kAllGather, count, type, {}, 0}, input, output},
               comm, stream);
  }
  static int Broadcast(const void* input, void* output, size_t count,
                       NcclNumber type, int root, NcclComm comm,
                       CudaStream stream) {
    return Add({{NcclKind::kBroadcast, count, type, {}, root}, input, output},
               comm, stream);
  }
  static int Send(const void* data, size_t count, NcclNumber type, int peer,
                  NcclComm comm, CudaStream stream) {
    return Add({{NcclKind::kSend, count, type, {}, peer}, data, nullptr}, comm,
               stream);
  }
  static int Receive(void* data, size_t count, NcclNumber type, int peer,
                     NcclComm comm, CudaStream stream) {
    return Add({{NcclKind::kReceive, count, type, {}, peer}, nullptr, data},
               comm, stream);
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
