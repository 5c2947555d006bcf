#include "runtime/transport/gpu/nccl_communicator.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"

namespace tf_hvd {
namespace {

// Calls all of `ends`, each on a separate thread. False if some have not
// returned in time; these may run until the process exits.
bool WithinLimit(int64_t limit_ns, std::vector<std::function<void()>> ends) {
  struct State {
    explicit State(size_t count) : left(count) {}

    Mutex mutex;
    std::condition_variable one_ended;
    size_t left GUARDED_BY(mutex);
  };
  const auto state = std::make_shared<State>(ends.size());
  for (std::function<void()>& end : ends) {
    std::thread([state, end = std::move(end)]() mutable {
      end();
      // Its captured objects may be destroyed when all have ended.
      end = nullptr;
      const MutexLock lock(&state->mutex);
      --state->left;
      state->one_ended.notify_all();
    }).detach();
  }
  MutexLock lock(&state->mutex);
  return state->one_ended.wait_for(
      lock.native(), std::chrono::nanoseconds(limit_ns),
      [&]() REQUIRES(state->mutex) { return state->left == 0; });
}

}  // namespace

Status FromNccl(const NcclApi& api, const char* call, int error) {
  if (error == kNcclSuccess || error == kNcclInProgress) return Status::Ok();
  std::string text = std::string(call) + " failed: ";
  const char* const meaning = api.get_error_string(error);
  text += meaning != nullptr ? meaning : "error " + std::to_string(error);
  const char* const last = api.get_last_error(nullptr);
  if (last != nullptr && *last != '\0') text += std::string(" (") + last + ")";
  return Aborted(text + "; set NCCL_DEBUG=WARN for details");
}

Status NcclCommunicator::Begin(const NcclUniqueId& id, size_t ranks,
                               size_t me) {
  me_ = me;
  NcclConfig config;
  return device_->Within([&] {
    return Check(
        "ncclCommInitRankConfig",
        api_->comm_init_rank_config(&comm_, static_cast<int>(ranks), id,
                                    static_cast<int>(me), &config));
  });
}

Status NcclCommunicator::Ready(bool* ready) {
  int error = kNcclSuccess;
  TF_HVD_RETURN_IF_ERROR(Check("ncclCommGetAsyncError",
                               api_->comm_get_async_error(comm_, &error)));
  *ready = error == kNcclSuccess;
  return Check("NCCL", error);
}

Status NcclCommunicator::Put(const GpuCall& call, CudaStream stream) {
  return device_->Within([&]() -> Status {
    const GpuBuffer first = {call.input, call.output, call.count};
    if (call.kind == OpKind::kAlltoall) {
      return PutGroup([&] { return PutAlltoall(call, stream); });
    }
    if (call.others.empty()) return PutOne(call, first, stream);
    return PutGroup([&] {
      Status status = PutOne(call, first, stream);
      for (const GpuBuffer& other : call.others) {
        if (status.ok()) status = PutOne(call, other, stream);
      }
      return status;
    });
  });
}

Status NcclCommunicator::PutOne(const GpuCall& call, const GpuBuffer& buffer,
                                CudaStream stream) {
  const auto& [input, output, count] = buffer;
  switch (call.kind) {
    case OpKind::kAllreduce:
      return Check("ncclAllReduce",
                   api_->all_reduce(input, output, count, call.number,
                                    call.reduction, comm_, stream));
    case OpKind::kReducescatter:
      return Check("ncclReduceScatter",
                   api_->reduce_scatter(input, output, count, call.number,
                                        call.reduction, comm_, stream));
    case OpKind::kAllgather:
      return Check(
          "ncclAllGather",
          api_->all_gather(input, output, count, call.number, comm_, stream));
    case OpKind::kBroadcast:
      return Check("ncclBroadcast",
                   api_->broadcast(input, output, count, call.number, call.root,
                                   comm_, stream));
    default:
      return Internal("bug in tf_hvd: NCCL has no " +
                      std::string(NameOf(call.kind)));
  }
}

// A group must be ended once it has been started, even after an error in it.
Status NcclCommunicator::PutGroup(const std::function<Status()>& put) {
  TF_HVD_RETURN_IF_ERROR(Check("ncclGroupStart", api_->group_start()));
  const Status status = put();
  const Status ended = Check("ncclGroupEnd", api_->group_end());
  return status.ok() ? ended : status;
}

// Ranks without data for each other exchange nothing. A rank without any data
// sends nothing to itself, so that it makes a call too.
Status NcclCommunicator::PutAlltoall(const GpuCall& call, CudaStream stream) {
  const auto is_zero = [](int64_t bytes) { return bytes == 0; };
  const bool idle =
      std::all_of(call.send.begin(), call.send.end(), is_zero) &&
      std::all_of(call.receive.begin(), call.receive.end(), is_zero);
  const auto* input = static_cast<const char*>(call.input);
  auto* output = static_cast<char*>(call.output);
  for (size_t i = 0; i < call.send.size(); ++i) {
    const int peer = static_cast<int>(i);
    const auto sent = static_cast<size_t>(call.send[i]);
    const auto received = static_cast<size_t>(call.receive[i]);
    const bool always = idle && i == me_;
    if (sent > 0 || always) {
      TF_HVD_RETURN_IF_ERROR(Check(
          "ncclSend",
          api_->send(input, sent, NcclNumber::kUint8, peer, comm_, stream)));
    }
    if (received > 0 || always) {
      TF_HVD_RETURN_IF_ERROR(
          Check("ncclRecv", api_->receive(output, received, NcclNumber::kUint8,
                                          peer, comm_, stream)));
    }
    input += sent;
    output += received;
  }
  return Status::Ok();
}

std::function<void()> NcclCommunicator::TakeForAbort() {
  const NcclComm comm = std::exchange(comm_, nullptr);
  if (comm == nullptr) return nullptr;
  return [api = api_, device = device_, comm] {
    static_cast<void>(device->Within([&] {
      static_cast<void>(api->comm_abort(comm));
      return Status::Ok();
    }));
  };
}

bool NcclCommunicator::AbortAll(
    const std::vector<std::shared_ptr<NcclCommunicator>>& all,
    int64_t limit_ns) {
  std::vector<std::function<void()>> aborts;
  for (const auto& communicator : all) {
    aborts.push_back(communicator->TakeForAbort());
    if (aborts.back() == nullptr) aborts.pop_back();
  }
  return WithinLimit(limit_ns, std::move(aborts));
}

void NcclCommunicator::End() {
  if (comm_ == nullptr) return;
  Status status = device_->Within(
      [&] { return Check("ncclCommFinalize", api_->comm_finalize(comm_)); });
  const int64_t deadline_ns = NowNs() + end_limit_ns_;
  bool ready = false;
  while (status.ok() && !ready && NowNs() < deadline_ns) {
    status = Ready(&ready);
    if (!ready) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (!ready) {
    static_cast<void>(WithinLimit(end_limit_ns_, {TakeForAbort()}));
    return;
  }
  const NcclComm comm = std::exchange(comm_, nullptr);
  status = device_->Within(
      [&] { return Check("ncclCommDestroy", api_->comm_destroy(comm)); });
}

}  // namespace tf_hvd
