// NcclBootstrap: what the ranks of a set tell each other before NCCL connects
// them, and what must be so, lest NCCL hangs. Pure.
#ifndef TF_HVD_RUNTIME_TRANSPORT_GPU_NCCL_BOOTSTRAP_H_
#define TF_HVD_RUNTIME_TRANSPORT_GPU_NCCL_BOOTSTRAP_H_

#include <string>
#include <vector>

#include "base/status.h"
#include "runtime/transport/gpu/cuda_api.h"
#include "runtime/transport/gpu/nccl_api.h"

namespace tf_hvd {

// What one rank tells of itself. Sent as it lies in memory: all ranks run the
// same build.
struct PeerInfo {
  int nccl_version = 0;
  int ordinal = 0;
  CudaUuid uuid{};
  NcclUniqueId id{};  // of the first rank
  // NCCL's settings that must be alike, "NAME=value" in lines; cut if longer.
  char settings[1024] = "";
};

void SetSettings(const std::string& settings, PeerInfo* peer);

// `names`: of the peers, "rank 3 (host)". An error names
// two of them. `shared_devices`: that two have one device is no error.
Status CheckPeers(const std::vector<PeerInfo>& peers,
                  const std::vector<std::string>& names, bool shared_devices);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_NCCL_BOOTSTRAP_H_
