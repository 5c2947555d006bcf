// This process's CUDA and NCCL, as machine-readable lines for `tf_hvd doctor`.
// Initialises the driver, but creates no context: for a process that does
// nothing else.
#ifndef TF_HVD_RUNTIME_TRANSPORT_GPU_REPORT_H_
#define TF_HVD_RUNTIME_TRANSPORT_GPU_REPORT_H_

#include <string>

#include "runtime/transport/gpu/libraries.h"

namespace tf_hvd {

// Lines of tab-separated fields, each of one of these kinds:
//
//   driver <path> <version, 12050 for 12.5>
//   no driver <reason>
//   driver failed <error>
//   gpu <number> <name> <compute capability> <code for it in this build>
//   nccl <path> <version, 22105 for 2.21.5>
//   no nccl <reason>
//
// The code is "machine code", "PTX", which the driver compiles, or "none".
std::string GpuReport(const GpuLibraries& libraries);

// Whether this build has code for GPUs.
bool HasCodeForGpus();

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_REPORT_H_
