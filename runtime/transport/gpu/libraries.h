// What of CUDA and NCCL this process has: opens the driver, and NCCL where
// there is a driver, and fills the tables of their functions.
//
// Nothing of CUDA is initialised: a script may still choose its GPU
// (CUDA_VISIBLE_DEVICES) after init. Any thread: called by init, and by who
// asks what is there. Opened libraries are never closed.
#ifndef TF_HVD_RUNTIME_TRANSPORT_GPU_LIBRARIES_H_
#define TF_HVD_RUNTIME_TRANSPORT_GPU_LIBRARIES_H_

#include <string>
#include <vector>

#include "runtime/transport/gpu/cuda_api.h"
#include "runtime/transport/gpu/nccl_api.h"

namespace tf_hvd {

struct GpuSearch {
  std::string
      cuda_library;  // path; empty: libcuda.so.1, as the loader finds it
  std::string nccl_library;  // path; empty: see below
  bool use_nccl = true;
  std::vector<std::string> nccl_candidates;  // of the Python environment
};

struct GpuLibraries {
  const CudaApi* cuda = nullptr;  // null: `no_cuda` says why
  const NcclApi* nccl = nullptr;  // null: `no_nccl` says why
  int nccl_version = 0;           // 22105 for 2.21.5
  std::string cuda_path;          // of the files that were opened
  std::string nccl_path;
  std::string no_cuda;
  std::string no_nccl;
};

// NCCL: the one of nccl_library alone if there is one, else the one that is in
// the process already, the first of nccl_candidates that can be opened, the
// system's.
GpuLibraries OpenGpuLibraries(const GpuSearch& search);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_LIBRARIES_H_
