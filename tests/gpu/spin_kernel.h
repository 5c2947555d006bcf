// SpinKernel: a kernel that keeps a stream busy until a flag in pinned memory
// is set or a number of nanoseconds is over. With the flag already set it does
// almost nothing. Probes measure calls while it runs.
//
// It is PTX, which the driver compiles: neither nvcc nor NVRTC is needed. The
// software GPU has no compiler and provides the kernel's work as a function.
#ifndef TF_HVD_TESTS_GPU_SPIN_KERNEL_H_
#define TF_HVD_TESTS_GPU_SPIN_KERNEL_H_

#include <cstdint>
#include <string>

#include "base/status.h"
#include "runtime/transport/gpu/cuda_api.h"

namespace tf_hvd {

// The code for a compute capability: 90 for 9.0.
std::string SpinCode(int capability);

// The name of the software GPU's function.
inline constexpr char kSoftwareSpin[] = "tf_hvd_software_spin";
using SoftwareSpin = int (*)(CudaStream stream, const volatile uint32_t* flag,
                             uint64_t limit_ns);

// A context must be current for all calls.
class SpinKernel {
 public:
  // `software`: null on a real device.
  Status Load(const CudaApi* cuda, int device, SoftwareSpin software);
  Status Launch(CudaStream stream, const volatile uint32_t* flag,
                uint64_t limit_ns) const;

 private:
  const CudaApi* cuda_ = nullptr;
  SoftwareSpin software_ = nullptr;
  CudaModule module_ = nullptr;  // until the context ends
  CudaFunction function_ = nullptr;
};

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_SPIN_KERNEL_H_
