// A driver and an NCCL of software, to be opened as libcuda.so.1 and as
// libnccl.so.2 by programs without TensorFlow. A process has two GPUs, or as
// many as TF_HVD_SOFTWARE_GPUS says; other processes have others.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>

#include "tests/gpu/software_gpu.h"
#include "tests/gpu/software_nccl.h"

namespace tf_hvd {
namespace {

// Never destroyed: the library's users may end later than it does.
__attribute__((constructor)) void MakeMachine() {
  const char* const devices = std::getenv("TF_HVD_SOFTWARE_GPUS");
  auto* const gpu = new SoftwareGpu(devices == nullptr ? 2 : std::atoi(devices),
                                    static_cast<uint64_t>(getpid()));
  new SoftwareNccl(
      gpu, std::make_unique<FileBoard>(P_tmpdir, "tf_hvd-software-nccl-"));
}

}  // namespace
}  // namespace tf_hvd

// By the host's clock: software has no other. Of no use but to run what asks.
extern "C" __attribute__((visibility("default"))) int cuEventElapsedTime(
    float* milliseconds, CUevent_st* start, CUevent_st* end) {
  auto& gpu = tf_hvd::SoftwareGpu::Get();
  const std::lock_guard<std::mutex> lock(gpu.mutex());
  if (start->last == nullptr || end->last == nullptr) return 400;
  if (!start->last->done || !end->last->done) return tf_hvd::kCudaNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(end->last->when -
                                                           start->last->when)
                      .count();
  return 0;
}

// A process that has done what is wrong does not end well.
__attribute__((destructor)) static void TellFaults() {
  const auto faults = tf_hvd::SoftwareGpu::Get().Faults();
  for (const std::string& fault : faults) {
    std::fprintf(stderr, "software GPU: %s\n", fault.c_str());
  }
  if (!faults.empty()) _exit(1);
}
