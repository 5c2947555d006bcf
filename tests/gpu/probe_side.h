// ProbeSide: a GPU, real or software, as used by the probes of
// device_probes.cc, which measure the cost of driver calls. In addition to the
// runtime's table it has other driver functions, a kernel that runs for a given
// time, and the host's clock.
//
// Depends only on the runtime, like device_side.h. One thread, except where
// noted.
#ifndef TF_HVD_TESTS_GPU_PROBE_SIDE_H_
#define TF_HVD_TESTS_GPU_PROBE_SIDE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "runtime/transport/gpu/cuda_api.h"
#include "runtime/transport/gpu/device.h"
#include "tests/gpu/device_side.h"
#include "tests/gpu/percentile.h"
#include "tests/gpu/program_options.h"
#include "tests/gpu/spin_kernel.h"

namespace tf_hvd {

// Null if the driver does not have the function.
struct MoreCuda {
  int (*stream_query)(CudaStream stream) = nullptr;
  int (*memcpy_to_device)(CudaPointer to, const void* from, size_t bytes,
                          CudaStream stream) = nullptr;
  SoftwareSpin software_spin = nullptr;
};

// A probe's results; names end with the unit. Printed as a line that the report
// of the first hour includes.
class Figures {
 public:
  explicit Figures(std::string probe) : probe_(std::move(probe)) {}

  void Add(const std::string& name, double value) {
    values_.emplace_back(name, value);
  }
  // The probe is impossible here, or parts of it are.
  void NotHere(const std::string& reason) { not_here_ = reason; }
  void Print() const;

 private:
  const std::string probe_;
  std::string not_here_;
  std::vector<std::pair<std::string, double>> values_;
};

using ProbeClock = std::chrono::steady_clock;

double MicrosecondsSince(ProbeClock::time_point start);

// Set by the host, read by a kernel.
class Flag {
 public:
  Status Open(GpuDevice* device);
  volatile uint32_t* get() const {
    return reinterpret_cast<volatile uint32_t*>(memory_.get());
  }
  void Set(bool to) const { *get() = to ? 1 : 0; }

 private:
  std::shared_ptr<char> memory_;
};

class ProbeSide {
 public:
  static Status Open(const ProgramOptions& options,
                     const GpuLibraries& libraries, int ordinal,
                     std::unique_ptr<ProbeSide>* side);
  const ProgramOptions& options() const { return options_; }
  const CudaApi& cuda() const { return *cuda_; }
  const MoreCuda& more() const { return more_; }
  DeviceSide* side() const { return side_.get(); }
  GpuDevice* device() const { return side_->device(); }
  int repetitions() const { return repetitions_; }
  // Size of large data in bytes: --megabytes.
  size_t large() const { return large_; }

  // Call it before Spin and LaunchNothing.
  Status LoadSpin();
  // Keeps the stream busy until the flag is set, or for this long.
  Status Spin(CudaStream stream, const Flag& flag,
              std::chrono::milliseconds limit) const;
  // Launches a kernel that does almost nothing.
  Status LaunchNothing(CudaStream stream) const;
  // Polls only by the driver's function; an error after a minute.
  Status Await(const GpuEvent& event) const;
  // Any thread: calls `fn` repeatedly with the context current until stopped.
  Status Repeat(const std::function<void()>& fn,
                const std::function<bool()>& ends) const;

 private:
  ProbeSide(const ProgramOptions& options, const CudaApi* cuda)
      : options_(options), cuda_(cuda) {}

  const ProgramOptions& options_;
  const CudaApi* const cuda_;
  MoreCuda more_;
  std::unique_ptr<DeviceSide> side_;
  SpinKernel spin_;
  Flag set_;
  int repetitions_ = 0;
  size_t large_ = 0;
};

// Converts the result of a driver call to a Status.
inline Status Within(const ProbeSide& side, const char* call,
                     const std::function<int()>& fn) {
  return side.device()->Within(
      [&] { return FromCuda(side.cuda(), call, fn()); });
}

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_PROBE_SIDE_H_
