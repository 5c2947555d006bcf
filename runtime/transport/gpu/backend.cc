#include "runtime/transport/gpu/backend.h"

#include <algorithm>
#include <chrono>
#include <list>
#include <utility>

#include "base/mutex.h"
#include "runtime/contract/rank_group.h"
#include "runtime/transport/gpu/operation.h"

namespace tf_hvd {
namespace {

// The rows of most operations. Memory of this size for all operations that may
// be in progress is allocated at the start; more is allocated when needed.
constexpr size_t kRowBytes = size_t{128} << 10;

// Maximum total size of the gaps between a call's tensors.
constexpr size_t kSpareGaps = size_t{64} << 10;

}  // namespace

GpuBackend::GpuBackend(GpuDevices* devices, const NcclApi* nccl, int rank,
                       std::vector<std::string> names,
                       std::vector<Backend*> hosts, const GpuOptions& options)
    : devices_(devices),
      nccl_(nccl),
      rank_(rank),
      names_(std::move(names)),
      hosts_(std::move(hosts)),
      options_(options) {}

GpuBackend::~GpuBackend() {
  Close(/*clean=*/false);
  if (!abort_ended_) KeepMemory();
}

void GpuBackend::KeepMemory() {
  static Mutex mutex;
  static auto* const kept PT_GUARDED_BY(mutex) =
      new std::list<std::pair<std::map<int, OnDevice>, std::vector<Rows>>>;
  const MutexLock lock(&mutex);
  kept->emplace_back(std::move(on_devices_), std::move(free_rows_));
}

bool GpuBackend::Serves(const OperationSpec& spec) const {
  if (spec.memory.kind != MemoryKind::kDevice) return false;
  return spec.ranks->size() == 1 || ByNccl(spec) || ByMpi(spec);
}

bool GpuBackend::TakesNccl(OpKind kind) const {
  return nccl_ != nullptr && options_.not_by_nccl.count(kind) == 0;
}

bool GpuBackend::ByNccl(const OperationSpec& spec) const {
  return TakesNccl(spec.kind) && NcclCanDo(spec);
}

bool GpuBackend::ByMpi(const OperationSpec& spec) const {
  return options_.connect_by_mpi != nullptr && !TakesNccl(spec.kind) &&
         spec.set == kWorldSet && MpiCanDo(spec);
}

Status GpuBackend::Make(OperationSpec spec,
                        std::unique_ptr<Operation>* operation) {
  size_t me = 0;
  TF_HVD_RETURN_IF_ERROR(FindPlace(spec, rank_, &me));
  OnDevice* on = nullptr;
  TF_HVD_RETURN_IF_ERROR(OnDeviceOf(spec, &on));
  std::shared_ptr<GpuCommunicator> communicator;
  Backend* host = nullptr;
  if (spec.ranks->size() > 1) {
    TF_HVD_RETURN_IF_ERROR(CommunicatorOf(spec, *on, &communicator, &host));
  }
  NcclCommunicator* const connecting =
      host == nullptr ? nullptr : communicators_by_set_[spec.set].get();
  auto made = std::make_unique<GpuOperation>(this, std::move(spec), me, on,
                                             std::move(communicator));
  TF_HVD_RETURN_IF_ERROR(made->Plan());
  if (host != nullptr) {
    TF_HVD_RETURN_IF_ERROR(made->Bootstrap(host, connecting));
  }
  *operation = std::move(made);
  return Status::Ok();
}

Status GpuBackend::CommunicatorOf(
    const OperationSpec& spec, const OnDevice& on,
    std::shared_ptr<GpuCommunicator>* communicator, Backend** host) {
  if (ByNccl(spec)) {
    std::shared_ptr<NcclCommunicator>& of_set = communicators_by_set_[spec.set];
    if (of_set == nullptr) {
      of_set = NewCommunicator(on.device);
      TF_HVD_RETURN_IF_ERROR(FindHost(spec, host));
    }
    *communicator = of_set;
  } else {
    if (by_mpi_ == nullptr) by_mpi_ = options_.connect_by_mpi(on.device);
    *communicator = by_mpi_;
  }
  const int used = (*communicator)->device()->ordinal();
  if (used == on.device->ordinal()) return Status::Ok();
  return FailedPrecondition(
      "a tensor is on GPU " + std::to_string(on.device->ordinal()) +
      ", but this rank has used GPU " + std::to_string(used) +
      " in this process set; use one GPU per rank");
}

Status GpuBackend::OnDeviceOf(const OperationSpec& spec, OnDevice** on) {
  std::shared_ptr<GpuDevice> device;
  const auto of_set = communicators_by_set_.find(spec.set);
  if (spec.memory.device >= 0) {
    TF_HVD_RETURN_IF_ERROR(devices_->OfOrdinal(spec.memory.device, &device));
  } else if (of_set != communicators_by_set_.end()) {
    device = of_set->second->device();  // joined: the device used before
  } else if (spec.set == kWorldSet && by_mpi_ != nullptr) {
    device = by_mpi_->device();
  } else {
    TF_HVD_RETURN_IF_ERROR(devices_->Any(&device));
  }
  OnDevice& found = on_devices_[device->ordinal()];
  if (found.device == nullptr) {
    for (CudaStream& stream : found.streams) {
      TF_HVD_RETURN_IF_ERROR(device->NewStream(&stream));
    }
    TF_HVD_RETURN_IF_ERROR(device->Allocate(
        MemoryKind::kDevice, options_.staging_bytes, &found.staging));
    TF_HVD_RETURN_IF_ERROR(AddRows(device, window(), kRowBytes));
    found.device = device;
  }
  *on = &found;
  return Status::Ok();
}

Status GpuBackend::TakeRows(const OnDevice& on, size_t bytes, Rows* rows) {
  const int ordinal = on.device->ordinal();
  const auto found =
      std::find_if(free_rows_.begin(), free_rows_.end(), [&](const Rows& free) {
        return free.ordinal == ordinal && free.bytes >= bytes;
      });
  if (found != free_rows_.end()) {
    *rows = std::move(*found);
    free_rows_.erase(found);
    return Status::Ok();
  }
  TF_HVD_RETURN_IF_ERROR(AddRows(on.device, 1, std::max(bytes, kRowBytes)));
  *rows = std::move(free_rows_.back());
  free_rows_.pop_back();
  return Status::Ok();
}

Status GpuBackend::AddRows(const std::shared_ptr<GpuDevice>& device,
                           size_t blocks, size_t bytes) {
  std::shared_ptr<char> memory;
  TF_HVD_RETURN_IF_ERROR(
      device->Allocate(MemoryKind::kPinned, blocks * bytes, &memory));
  for (size_t at = 0; at < blocks * bytes; at += bytes) {
    free_rows_.push_back(
        {{memory, memory.get() + at}, bytes, device->ordinal()});
  }
  return Status::Ok();
}

Status GpuBackend::Spare(OnDevice* on, size_t bytes, char** memory) {
  const size_t room = options_.limits.call_bytes + kSpareGaps;
  if (bytes > room) {
    return Internal("bug in tf_hvd: zeros of " + std::to_string(bytes) +
                    " bytes for one call");
  }
  if (on->spare == nullptr) {
    TF_HVD_RETURN_IF_ERROR(
        on->device->Allocate(MemoryKind::kDevice, room, &on->spare));
  }
  *memory = on->spare.get();
  return Status::Ok();
}

Status GpuBackend::FindHost(const OperationSpec& spec, Backend** host) const {
  OperationSpec exchange;
  exchange.kind = OpKind::kAllgather;
  exchange.ranks = spec.ranks;
  exchange.set = spec.set;
  exchange.spans.resize(spec.ranks->size());
  for (Backend* const one : hosts_) {
    if (!one->Serves(exchange)) continue;
    *host = one;
    return Status::Ok();
  }
  return Internal("bug in tf_hvd: no backend accepts the bootstrap of NCCL");
}

// Ending a communicator after its last operation takes time, and waits for the
// other ranks, which may wait for this one's progress. So a separate thread
// ends it.
std::shared_ptr<NcclCommunicator> GpuBackend::NewCommunicator(
    const std::shared_ptr<GpuDevice>& device) {
  ForgetEnded();
  std::shared_ptr<NcclCommunicator> made(
      new NcclCommunicator(nccl_, device, options_.end_limit_ns),
      [this](NcclCommunicator* last) {
        ending_.push_back(std::async(std::launch::async, [last] {
          last->End();
          delete last;
        }));
      });
  communicators_.push_back(made);
  return made;
}

void GpuBackend::ForgetEnded() {
  const auto forget = [](auto* all, const auto& has_ended) {
    all->erase(std::remove_if(all->begin(), all->end(), has_ended), all->end());
  };
  forget(&communicators_, [](const auto& one) { return one.expired(); });
  forget(&ending_, [](const auto& end) {
    return end.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  });
}

bool GpuBackend::AbortAll() {
  if (std::exchange(aborted_, true)) return abort_ended_;
  std::vector<std::shared_ptr<NcclCommunicator>> all;
  for (const auto& one : communicators_) {
    if (auto communicator = one.lock()) all.push_back(std::move(communicator));
  }
  abort_ended_ = NcclCommunicator::AbortAll(all, options_.end_limit_ns) &&
                 (by_mpi_ == nullptr || by_mpi_->at_rest());
  return abort_ended_;
}

void GpuBackend::SetRemoved(int32_t set) {
  communicators_by_set_.erase(set);
  ForgetEnded();
}

void GpuBackend::Close(bool clean) {
  if (!clean) static_cast<void>(AbortAll());
  communicators_by_set_.clear();
  by_mpi_.reset();
  ending_.clear();  // waits for them
}

}  // namespace tf_hvd
