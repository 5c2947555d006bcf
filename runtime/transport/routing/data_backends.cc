#include "runtime/transport/routing/data_backends.h"

#include <algorithm>
#include <utility>

namespace tf_hvd {

DataBackends::DataBackends(const Topology& topology,
                           const std::optional<ShmArena>& arena,
                           ShmBackend::Wake wake, PointToPoint* p2p,
                           Doorbell* doorbell, const GpuAccess& gpu,
                           SlotOptions slots)
    : p2p_(p2p, topology.rank), gpu_access_(gpu) {
  if (arena.has_value()) {
    const auto node = static_cast<size_t>(topology.NodeOf(topology.rank));
    shm_.emplace(*arena, topology.nodes[node], topology.rank, std::move(wake),
                 std::move(slots));
    all_.push_back(&*shm_);
    if (topology.nodes.size() > 1) {
      two_level_.emplace(topology.nodes, topology.rank, &*shm_, p2p);
      all_.push_back(&*two_level_);
    }
  }
  all_.push_back(&p2p_);
  const bool by_host =
      gpu.nccl == nullptr && gpu.options.connect_by_mpi == nullptr;
  if (by_host && topology.size > 1) warn_ = gpu.warn;
  if (gpu.devices != nullptr) AddGpus(topology, doorbell);
}

void DataBackends::AddGpus(const Topology& topology, Doorbell* doorbell) {
  bell_.emplace(doorbell);
  gpu_access_.options.ring = bell_->ring();
  const std::vector<Backend*> hosts = all_;
  gpu_.emplace(gpu_access_.devices.get(), gpu_access_.nccl, topology.rank,
               topology.RankTexts(), hosts, gpu_access_.options);
  all_.push_back(&*gpu_);
  const auto warn = [this] {
    if (warn_ == nullptr) return;
    std::exchange(warn_, nullptr)(
        "GPU tensors move through host memory, which is slower than NCCL: " +
        gpu_access_.no_nccl +
        ". Install nvidia-nccl-cu12, or set TF_HVD_NCCL_LIBRARY to the path of "
        "libnccl.so.2. If this is intended, set TF_HVD_NCCL=0");
  };
  for (Backend* const host : hosts) {
    pinned_.emplace_back(gpu_access_.devices.get(), host, topology.rank, warn);
    all_.push_back(&pinned_.back());
  }
}

std::string DataBackends::Describe() const {
  if (!gpu_.has_value()) return DescribeHost();
  const bool cuda_aware = gpu_access_.options.connect_by_mpi != nullptr;
  const std::string else_by =
      cuda_aware ? "by CUDA-aware MPI" : "through host memory";
  const std::string text = DescribeHost() + "; on GPUs ";
  if (gpu_access_.nccl == nullptr) {
    return text + else_by + ", because " + gpu_access_.no_nccl;
  }
  std::string others;
  bool all = true;
  for (const OpKind kind : TensorKinds()) {
    if (gpu_access_.options.not_by_nccl.count(kind) == 0) {
      all = false;
    } else {
      others += std::string(others.empty() ? "" : ", ") + NameOf(kind);
    }
  }
  if (others.empty()) return text + "by NCCL";
  if (all) return text + else_by + ", because of HOROVOD_GPU_OPERATIONS";
  return text + others + " " + else_by + ", the rest by NCCL";
}

std::string DataBackends::DescribeHost() const {
  if (!shm_.has_value()) return "by messages";
  if (!two_level_.has_value()) return "through shared memory";
  return "through shared memory within a machine, by messages between "
         "machines";
}

bool DataBackends::NeedArenas(const Topology& topology) {
  return std::any_of(topology.nodes.begin(), topology.nodes.end(),
                     [](const auto& node) { return node.size() > 1; });
}

}  // namespace tf_hvd
