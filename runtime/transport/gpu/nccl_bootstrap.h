// NcclBootstrap: the data that a set's ranks exchange before NCCL connects
// them, and checks of the conditions under which NCCL would hang. Pure.
#ifndef TF_HVD_RUNTIME_TRANSPORT_GPU_NCCL_BOOTSTRAP_H_
#define TF_HVD_RUNTIME_TRANSPORT_GPU_NCCL_BOOTSTRAP_H_

#include <string>
#include <vector>

#include "base/status.h"
#include "runtime/transport/gpu/cuda_api.h"
#include "runtime/transport/gpu/nccl_api.h"

namespace tf_hvd {

// One rank's data. Sent as a plain copy of its memory: all ranks run the same
// build.
struct PeerInfo {
  int nccl_version = 0;
  int ordinal = 0;
  CudaUuid uuid{};
  NcclUniqueId id{};  // of the first rank
  // The NCCL settings that must be equal, as lines of "NAME=value"; truncated
  // if longer.
  char settings[1024] = "";
};

void SetSettings(const std::string& settings, PeerInfo* peer);

// `names`: of the peers, "rank 3 (host)". An error names two of them.
// `shared_devices`: two ranks may use one device.
Status CheckPeers(const std::vector<PeerInfo>& peers,
                  const std::vector<std::string>& names, bool shared_devices);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_NCCL_BOOTSTRAP_H_
