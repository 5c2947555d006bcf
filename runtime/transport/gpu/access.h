// GpuAccess: a process's resources for tensors on GPUs, as agreed by the job's
// ranks.
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
  std::shared_ptr<GpuDevices> devices;  // null: the process has no driver
  const NcclApi* nccl = nullptr;        // null: some rank does not have NCCL
  std::string no_nccl;                  // the reason, for the log
  // Called when the first GPU tensor moves through host memory because NCCL is
  // missing, with the consequence and the fix. Null: no warning.
  std::function<void(const std::string& text)> warn;
  GpuOptions options;
};

// A rank's message to the others at init. Sent as a plain copy of its memory.
struct GpuLibrariesInfo {
  int has_driver = 0;
  int has_nccl = 0;
  int cuda_aware = 0;  // of its MPI
  char no_nccl[256] = "";
};

GpuLibrariesInfo InfoOf(const GpuLibraries& libraries);

// Why the ranks do not use NCCL: names the first rank that has a driver and no
// NCCL. Empty if all have it. `names`: "rank 3 (host)", by rank.
std::string NoNcclText(const std::vector<GpuLibrariesInfo>& all,
                       const std::vector<std::string>& names);

// Whether every rank has a driver, and an MPI that reports that it is
// CUDA-aware.
bool AllAreCudaAware(const std::vector<GpuLibrariesInfo>& all);
bool AllHaveDrivers(const std::vector<GpuLibrariesInfo>& all);

// `no_nccl`: from NoNcclText. `local_rank`: number of the GPU, among those
// visible to the process, that it uses before it has a tensor. `on_all_ranks`:
// see AllHaveDrivers.
GpuAccess AccessOf(const GpuLibraries& libraries, int local_rank,
                   const std::string& no_nccl, bool on_all_ranks);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_ACCESS_H_
