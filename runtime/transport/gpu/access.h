// GpuAccess: what a process has for tensors on GPUs, as its ranks have agreed.
#ifndef TF_HVD_RUNTIME_TRANSPORT_GPU_ACCESS_H_
#define TF_HVD_RUNTIME_TRANSPORT_GPU_ACCESS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/transport/gpu/backend.h"
#include "runtime/transport/gpu/devices.h"
#include "runtime/transport/gpu/libraries.h"

namespace tf_hvd {

struct GpuAccess {
  std::shared_ptr<GpuDevices> devices;  // null: it has no driver
  const NcclApi* nccl = nullptr;        // null: some rank has none
  std::string no_nccl;                  // why, for the log
  // Is told, when the first tensor of a GPU goes by the host's memory for want
  // of NCCL, what that costs and what cures it. Null: nobody is.
  std::function<void(const std::string& text)> warn;
  GpuOptions options;
};

// What a rank tells the others at init. Sent as it lies in memory.
struct GpuLibrariesInfo {
  int has_driver = 0;
  int has_nccl = 0;
  int cuda_aware = 0;  // its MPI
  char no_nccl[256] = "";
};

GpuLibrariesInfo InfoOf(const GpuLibraries& libraries);

// Why the ranks do not use NCCL: the first that has a driver and no NCCL, by
// its name. Empty if all have it. `names`: "rank 3 (host)", by rank.
std::string NoNcclText(const std::vector<GpuLibrariesInfo>& all,
                       const std::vector<std::string>& names);

// Whether every rank has a driver, and an MPI that says that it is CUDA-aware.
bool AllAreCudaAware(const std::vector<GpuLibrariesInfo>& all);
bool AllHaveDrivers(const std::vector<GpuLibrariesInfo>& all);

// `no_nccl`: as NoNcclText gives it. `local_rank`: of the GPUs that a process
// sees, the one that it takes for itself if it has no tensor yet.
// `on_all_ranks`: see AllHaveDrivers.
GpuAccess AccessOf(const GpuLibraries& libraries, int local_rank,
                   const std::string& no_nccl, bool on_all_ranks);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_ACCESS_H_
