#include "runtime/transport/gpu/report.h"

#include <algorithm>

#include "compute/device_image.h"
#include "runtime/transport/gpu/device.h"

namespace tf_hvd {
namespace {

// One line; separators inside fields are replaced.
std::string Line(std::initializer_list<std::string> fields) {
  std::string line;
  for (std::string field : fields) {
    std::replace(field.begin(), field.end(), '\n', ' ');
    std::replace(field.begin(), field.end(), '\t', ' ');
    line += (line.empty() ? "" : "\t") + field;
  }
  return line + "\n";
}

std::string CodeFor(int major, int minor) {
  size_t count = 0;
  const DeviceCode* const codes = DeviceCodes(&count);
  const DeviceCode* const code = ChooseCode(codes, count, major, minor);
  if (code == nullptr) return "none";
  return code->is_ptx ? "PTX" : "machine code";
}

Status AddGpu(const CudaApi& api, int ordinal, std::string* report) {
  int device = 0;
  int major = 0;
  int minor = 0;
  char name[256] = "";
  TF_HVD_RETURN_IF_ERROR(
      FromCuda(api, "cuDeviceGet", api.device_get(&device, ordinal)));
  TF_HVD_RETURN_IF_ERROR(
      FromCuda(api, "cuDeviceGetName",
               api.device_get_name(name, sizeof(name) - 1, device)));
  TF_HVD_RETURN_IF_ERROR(
      FromCuda(api, "cuDeviceGetAttribute",
               api.device_get_attribute(&major, kCudaCapabilityMajor, device)));
  TF_HVD_RETURN_IF_ERROR(
      FromCuda(api, "cuDeviceGetAttribute",
               api.device_get_attribute(&minor, kCudaCapabilityMinor, device)));
  *report += Line({"gpu", std::to_string(ordinal), name,
                   std::to_string(major) + "." + std::to_string(minor),
                   CodeFor(major, minor)});
  return Status::Ok();
}

Status AddGpus(const CudaApi& api, std::string* report) {
  int count = 0;
  TF_HVD_RETURN_IF_ERROR(FromCuda(api, "cuInit", api.init(0)));
  TF_HVD_RETURN_IF_ERROR(
      FromCuda(api, "cuDeviceGetCount", api.device_get_count(&count)));
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    TF_HVD_RETURN_IF_ERROR(AddGpu(api, ordinal, report));
  }
  return Status::Ok();
}

}  // namespace

bool HasCodeForGpus() {
  size_t count = 0;
  static_cast<void>(DeviceCodes(&count));
  return count > 0;
}

std::string GpuReport(const GpuLibraries& libraries) {
  std::string report;
  if (libraries.cuda == nullptr) {
    report += Line({"no driver", libraries.no_cuda});
  } else {
    int version = 0;
    static_cast<void>(libraries.cuda->driver_get_version(&version));
    report += Line({"driver", libraries.cuda_path, std::to_string(version)});
    const Status found = AddGpus(*libraries.cuda, &report);
    if (!found.ok()) report += Line({"driver failed", found.message()});
  }
  if (libraries.nccl == nullptr) {
    report += Line({"no nccl", libraries.no_nccl});
  } else {
    report += Line(
        {"nccl", libraries.nccl_path, std::to_string(libraries.nccl_version)});
  }
  return report;
}

}  // namespace tf_hvd
