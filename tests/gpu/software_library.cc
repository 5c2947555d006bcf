// A software driver and NCCL, to be opened as libcuda.so.1 and as libnccl.so.2
// by programs without TensorFlow. A process has two GPUs, or the number in
// TF_HVD_SOFTWARE_GPUS; other processes have other GPUs.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tests/gpu/software_gpu.h"
#include "tests/gpu/software_nccl.h"

namespace tf_hvd {
namespace {

// Never destroyed: users of the library may end later.
__attribute__((constructor)) void MakeMachine() {
  const char* const devices = std::getenv("TF_HVD_SOFTWARE_GPUS");
  auto* const gpu = new SoftwareGpu(devices == nullptr ? 2 : std::atoi(devices),
                                    static_cast<uint64_t>(getpid()));
  new SoftwareNccl(
      gpu, std::make_unique<FileBoard>(P_tmpdir, "tf_hvd-software-nccl-"));
}

}  // namespace
}  // namespace tf_hvd

// Uses the host's clock, since software has no device clock. Only lets programs
// run that need it.
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

// Functions that measuring programs use in addition to the runtime's table.
extern "C" __attribute__((visibility("default"))) int cuStreamQuery(
    CUstream_st* stream) {
  auto& gpu = tf_hvd::SoftwareGpu::Get();
  const std::lock_guard<std::mutex> lock(gpu.mutex());
  gpu.Advance();
  if (!stream->queue.empty()) return tf_hvd::kCudaNotReady;
  gpu.HostOf(stream->device).Join(stream->clock);
  return 0;
}

// From unpinned memory: the few bytes are copied at once.
extern "C" __attribute__((visibility("default"))) int cuMemcpyHtoDAsync_v2(
    tf_hvd::CudaPointer to, const void* from, size_t bytes,
    CUstream_st* stream) {
  auto& gpu = tf_hvd::SoftwareGpu::Get();
  const std::lock_guard<std::mutex> lock(gpu.mutex());
  auto* const output = reinterpret_cast<char*>(to);
  const auto* const input = static_cast<const char*>(from);
  gpu.Put(stream,
          {"a copy",
           nullptr,
           [&gpu, output,
            taken = std::vector<char>(input, input + bytes)](CUstream_st* of) {
             if (!gpu.Touch(of, output, taken.size(), true, "a copy")) return;
             std::copy(taken.begin(), taken.end(), output);
           },
           {}});
  gpu.Advance();
  return 0;
}

// Does the work of the kernel in spin_kernel.h: there is no compiler for PTX
// here.
extern "C" __attribute__((visibility("default"))) int tf_hvd_software_spin(
    CUstream_st* stream, const volatile uint32_t* flag, uint64_t limit_ns) {
  auto& gpu = tf_hvd::SoftwareGpu::Get();
  const std::lock_guard<std::mutex> lock(gpu.mutex());
  using Clock = std::chrono::steady_clock;
  const auto begun = std::make_shared<std::optional<Clock::time_point>>();
  gpu.Put(stream, {"a kernel that spins",
                   [flag, limit_ns, begun] {
                     if (!begun->has_value()) *begun = Clock::now();
                     return *flag != 0 ||
                            Clock::now() - **begun >
                                std::chrono::nanoseconds(limit_ns);
                   },
                   [&gpu, flag](CUstream_st* of) {
                     gpu.Touch(of, const_cast<const uint32_t*>(flag),
                               sizeof(*flag), false, "a kernel that spins");
                   },
                   {}});
  gpu.Advance();
  return 0;
}

// A process with faults must not exit successfully.
__attribute__((destructor)) static void TellFaults() {
  const auto faults = tf_hvd::SoftwareGpu::Get().Faults();
  for (const std::string& fault : faults) {
    std::fprintf(stderr, "software GPU: %s\n", fault.c_str());
  }
  if (!faults.empty()) _exit(1);
}
