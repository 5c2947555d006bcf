#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "runtime/transport/gpu/report.h"

namespace tf_hvd {
namespace {

// A driver with two GPUs; there is no code for one of them.
CudaApi TwoGpus() {
  CudaApi api;
  api.init = [](unsigned) { return 0; };
  api.driver_get_version = [](int* version) {
    *version = 12040;
    return 0;
  };
  api.get_error_name = [](int, const char** text) {
    *text = "CUDA_ERROR_NO_DEVICE";
    return 0;
  };
  api.get_error_string = [](int, const char** text) {
    *text = "no device\tis\ndetected";
    return 0;
  };
  api.device_get_count = [](int* count) {
    *count = 2;
    return 0;
  };
  api.device_get = [](int* device, int ordinal) {
    *device = ordinal + 40;  // different from our numbers
    return 0;
  };
  api.device_get_name = [](char* name, int, int device) {
    std::strcpy(name, device == 40 ? "A GPU" : "An old GPU");
    return 0;
  };
  api.device_get_attribute = [](int* value, int attribute, int device) {
    const bool major = attribute == kCudaCapabilityMajor;
    *value = device == 40 ? (major ? 8 : 6) : (major ? 5 : 2);
    return 0;
  };
  return api;
}

TEST(GpuReport, GpusAndNccl) {
  const std::string code = HasCodeForGpus() ? "machine code" : "none";
  const CudaApi cuda = TwoGpus();
  const NcclApi nccl;
  EXPECT_EQ(GpuReport({&cuda, &nccl, 22105, "/a/libcuda.so.1",
                       "/b/libnccl.so.2", "", ""}),
            "driver\t/a/libcuda.so.1\t12040\n"
            "gpu\t0\tA GPU\t8.6\t" +
                code +
                "\n"
                "gpu\t1\tAn old GPU\t5.2\tnone\n"
                "nccl\t/b/libnccl.so.2\t22105\n");
}

TEST(GpuReport, NothingThere) {
  GpuLibraries none;
  none.no_cuda = "libcuda.so.1: cannot open";
  none.no_nccl = "there is no CUDA driver";
  EXPECT_EQ(GpuReport(none),
            "no driver\tlibcuda.so.1: cannot open\n"
            "no nccl\tthere is no CUDA driver\n");
}

TEST(GpuReport, DriverThatFails) {
  CudaApi cuda = TwoGpus();
  cuda.init = [](unsigned) { return 100; };
  GpuLibraries libraries;
  libraries.cuda = &cuda;
  libraries.cuda_path = "/a/libcuda.so.1";
  libraries.no_nccl = "TF_HVD_NCCL=0";
  EXPECT_EQ(GpuReport(libraries),
            "driver\t/a/libcuda.so.1\t12040\n"
            "driver failed\tcuInit failed: CUDA_ERROR_NO_DEVICE (no device is "
            "detected)\n"
            "no nccl\tTF_HVD_NCCL=0\n");
}

}  // namespace
}  // namespace tf_hvd
