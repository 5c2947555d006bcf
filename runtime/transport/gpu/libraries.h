// CUDA and NCCL in this process: loads the driver, and NCCL if there is a
// driver, and fills the tables of their functions.
//
// CUDA is not initialised: a script may still choose its GPU
// (CUDA_VISIBLE_DEVICES) after init. Any thread: called by init, and by
// queries. Loaded libraries are never unloaded.
#ifndef TF_HVD_RUNTIME_TRANSPORT_GPU_LIBRARIES_H_
#define TF_HVD_RUNTIME_TRANSPORT_GPU_LIBRARIES_H_

#include <string>
#include <vector>

#include "runtime/transport/gpu/cuda_api.h"
#include "runtime/transport/gpu/nccl_api.h"

namespace tf_hvd {

struct GpuSearch {
  std::string cuda_library;  // path; empty: libcuda.so.1, found by the loader
  std::string nccl_library;  // path; empty: see below
  bool use_nccl = true;
  std::vector<std::string> nccl_candidates;  // of the Python environment
};

struct GpuLibraries {
  const CudaApi* cuda = nullptr;  // null: `no_cuda` has the reason
  const NcclApi* nccl = nullptr;  // null: `no_nccl` has the reason
  int nccl_version = 0;           // 22105 for 2.21.5
  std::string cuda_path;          // of the loaded files
  std::string nccl_path;
  std::string no_cuda;
  std::string no_nccl;
};

// NCCL: only nccl_library if it is set. Otherwise the library that the process
// has already loaded, the first of nccl_candidates that loads, or the system's.
GpuLibraries OpenGpuLibraries(const GpuSearch& search);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_LIBRARIES_H_
