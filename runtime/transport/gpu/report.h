// What this process has for tensors on GPUs, as lines that a program reads: for
// `tf_hvd doctor`. Starts the driver, but makes no context: for a process that
// does nothing else.
#ifndef TF_HVD_RUNTIME_TRANSPORT_GPU_REPORT_H_
#define TF_HVD_RUNTIME_TRANSPORT_GPU_REPORT_H_

#include <string>

#include "runtime/transport/gpu/libraries.h"

namespace tf_hvd {

// Lines of fields with a tab between them, each of one of these kinds:
//
//   driver <path> <version, 12050 for 12.5>
//   no driver <why>
//   driver failed <what it said>
//   gpu <number> <name> <compute capability> <code for it in this build>
//   nccl <path> <version, 22105 for 2.21.5>
//   no nccl <why>
//
// The code is "machine code", "PTX", which the driver compiles, or "none".
std::string GpuReport(const GpuLibraries& libraries);

// Whether this build has code for GPUs at all.
bool HasCodeForGpus();

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_REPORT_H_
