#include "runtime/transport/gpu/access.h"

#include <algorithm>

namespace tf_hvd {

GpuLibrariesCard CardOf(const GpuLibraries& libraries) {
  GpuLibrariesCard card;
  card.has_driver = libraries.cuda != nullptr ? 1 : 0;
  card.has_nccl = libraries.nccl != nullptr ? 1 : 0;
  const size_t length =
      std::min(libraries.no_nccl.size(), sizeof(card.no_nccl) - 1);
  libraries.no_nccl.copy(card.no_nccl, length);
  return card;
}

std::string NoNcclText(const std::vector<GpuLibrariesCard>& cards,
                       const std::vector<std::string>& names) {
  for (size_t i = 0; i < cards.size(); ++i) {
    if (cards[i].has_driver != 0 && cards[i].has_nccl == 0) {
      return names[i] + " has no NCCL: " + cards[i].no_nccl;
    }
  }
  return "";
}

bool AllAreCudaAware(const std::vector<GpuLibrariesCard>& cards) {
  return AllHaveDrivers(cards) && std::all_of(cards.begin(), cards.end(),
                                              [](const GpuLibrariesCard& card) {
                                                return card.cuda_aware != 0;
                                              });
}

bool AllHaveDrivers(const std::vector<GpuLibrariesCard>& cards) {
  return std::all_of(
      cards.begin(), cards.end(),
      [](const GpuLibrariesCard& card) { return card.has_driver != 0; });
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
