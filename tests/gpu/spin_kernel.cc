#include "tests/gpu/spin_kernel.h"

#include "runtime/transport/gpu/device.h"

namespace tf_hvd {
namespace {

// Versions of PTX, and the architectures that they introduced: a driver accepts
// the code for any older architecture, except for those no longer supported.
const char* HeadFor(int capability) {
  if (capability >= 90) return ".version 7.8\n.target sm_90\n";
  if (capability >= 75) return ".version 6.3\n.target sm_75\n";
  return ".version 6.0\n.target sm_60\n";
}

constexpr char kBody[] = R"(.address_size 64
.visible .entry tf_hvd_spin(.param .u64 flag, .param .u64 limit_ns)
{
  .reg .pred %p<3>;
  .reg .b32 %r<2>;
  .reg .b64 %rd<6>;
  ld.param.u64 %rd1, [flag];
  ld.param.u64 %rd2, [limit_ns];
  mov.u64 %rd3, %globaltimer;
LOOK:
  ld.volatile.u32 %r1, [%rd1];
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra DONE;
  mov.u64 %rd4, %globaltimer;
  sub.u64 %rd5, %rd4, %rd3;
  setp.lt.u64 %p2, %rd5, %rd2;
  @%p2 bra LOOK;
DONE:
  ret;
}
)";

}  // namespace

std::string SpinCode(int capability) {
  return std::string(HeadFor(capability)) + kBody;
}

Status SpinKernel::Load(const CudaApi* cuda, int device,
                        SoftwareSpin software) {
  cuda_ = cuda;
  software_ = software;
  if (software != nullptr) return Status::Ok();
  int major = 0;
  int minor = 0;
  TF_HVD_RETURN_IF_ERROR(FromCuda(
      *cuda, "cuDeviceGetAttribute",
      cuda->device_get_attribute(&major, kCudaCapabilityMajor, device)));
  TF_HVD_RETURN_IF_ERROR(FromCuda(
      *cuda, "cuDeviceGetAttribute",
      cuda->device_get_attribute(&minor, kCudaCapabilityMinor, device)));
  const std::string code = SpinCode(major * 10 + minor);
  TF_HVD_RETURN_IF_ERROR(
      FromCuda(*cuda, "cuModuleLoadData of the kernel that spins",
               cuda->module_load_data(&module_, code.c_str())));
  return FromCuda(
      *cuda, "cuModuleGetFunction",
      cuda->module_get_function(&function_, module_, "tf_hvd_spin"));
}

Status SpinKernel::Launch(CudaStream stream, const volatile uint32_t* flag,
                          uint64_t limit_ns) const {
  if (software_ != nullptr) {
    return FromCuda(*cuda_, kSoftwareSpin, software_(stream, flag, limit_ns));
  }
  auto address = reinterpret_cast<CudaPointer>(flag);
  void* arguments[] = {&address, &limit_ns};
  return FromCuda(*cuda_, "cuLaunchKernel",
                  cuda_->launch_kernel(function_, 1, 1, 1, 1, 1, 1, 0, stream,
                                       arguments, nullptr));
}

}  // namespace tf_hvd
