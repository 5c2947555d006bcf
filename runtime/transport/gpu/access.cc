#include "runtime/transport/gpu/access.h"

#include <algorithm>

namespace tf_hvd {

GpuLibrariesInfo InfoOf(const GpuLibraries& libraries) {
  GpuLibrariesInfo info;
  info.has_driver = libraries.cuda != nullptr ? 1 : 0;
  info.has_nccl = libraries.nccl != nullptr ? 1 : 0;
  const size_t length =
      std::min(libraries.no_nccl.size(), sizeof(info.no_nccl) - 1);
  libraries.no_nccl.copy(info.no_nccl, length);
  return info;
}

std::string NoNcclText(const std::vector<GpuLibrariesInfo>& all,
                       const std::vector<std::string>& names) {
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].has_driver != 0 && all[i].has_nccl == 0) {
      return names[i] + " has no NCCL: " + all[i].no_nccl;
    }
  }
  return "";
}

bool AllAreCudaAware(const std::vector<GpuLibrariesInfo>& all) {
  return AllHaveDrivers(all) &&
         std::all_of(all.begin(), all.end(), [](const GpuLibrariesInfo& info) {
           return info.cuda_aware != 0;
         });
}

bool AllHaveDrivers(const std::vector<GpuLibrariesInfo>& all) {
  return std::all_of(all.begin(), all.end(), [](const GpuLibrariesInfo& info) {
    return info.has_driver != 0;
  });
}

GpuAccess AccessOf(const GpuLibraries& libraries, int local_rank,
                   const std::string& no_nccl, bool on_all_ranks) {
  GpuAccess gpu;
  if (libraries.cuda == nullptr) return gpu;
  gpu.devices =
      std::make_shared<GpuDevices>(libraries.cuda, local_rank, on_all_ranks);
  gpu.no_nccl = no_nccl;
  if (no_nccl.empty()) gpu.nccl = libraries.nccl;
  return gpu;
}

}  // namespace tf_hvd
