// Shared parts of the programs of tests/run_gpu.sh: options, the search for a
// GPU, and the report of the result.
#ifndef TF_HVD_TESTS_GPU_PROGRAM_OPTIONS_H_
#define TF_HVD_TESTS_GPU_PROGRAM_OPTIONS_H_

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "base/status.h"
#include "runtime/transport/gpu/device.h"
#include "runtime/transport/gpu/libraries.h"

namespace tf_hvd {

// Exit codes besides 0 and 1.
inline constexpr int kWrongUse = 2;
inline constexpr int kNoGpu = 3;

// --name=value
class ProgramOptions {
 public:
  // --cuda and --nccl: the libraries to open, as TF_HVD_CUDA_LIBRARY and
  // TF_HVD_NCCL_LIBRARY; --use_nccl=0.
  ProgramOptions(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      const std::string option = argv[i];
      const size_t equals = option.find('=');
      if (option.rfind("--", 0) != 0 || equals == std::string::npos) {
        std::fprintf(stderr, "%s is not --name=value\n", argv[i]);
        std::exit(kWrongUse);
      }
      values_[option.substr(2, equals - 2)] = option.substr(equals + 1);
    }
  }

  std::string Text(const std::string& name,
                   const std::string& otherwise) const {
    const auto found = values_.find(name);
    return found == values_.end() ? otherwise : found->second;
  }
  int Number(const std::string& name, int otherwise) const {
    return std::atoi(Text(name, std::to_string(otherwise)).c_str());
  }

  GpuLibraries Open() const {
    GpuSearch search;
    search.cuda_library = Text("cuda", "");
    search.nccl_library = Text("nccl", "");
    search.use_nccl = Number("use_nccl", 1) != 0;
    return OpenGpuLibraries(search);
  }

  // Number of GPUs; 0, and the reason, if there are none.
  static int Count(const GpuLibraries& libraries, std::string* reason) {
    if (libraries.cuda == nullptr) {
      *reason = "there is no CUDA driver";
      return 0;
    }
    int count = 0;
    Status status =
        FromCuda(*libraries.cuda, "cuInit", libraries.cuda->init(0));
    if (status.ok()) {
      status = FromCuda(*libraries.cuda, "cuDeviceGetCount",
                        libraries.cuda->device_get_count(&count));
    }
    *reason = status.ok() ? "the driver has no device" : status.message();
    return status.ok() ? count : 0;
  }

  // Returns true and prints the reason if there is no GPU.
  static bool NoGpu(const GpuLibraries& libraries) {
    std::string reason;
    if (Count(libraries, &reason) > 0) return false;
    std::printf("no GPU: %s\n", reason.c_str());
    return true;
  }

 private:
  std::map<std::string, std::string> values_;
};

// Prints the last line; returns the exit code.
inline int Report(const Status& status, const std::string& said) {
  std::printf("%s\n", status.ok() ? said.c_str() : status.message().c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_PROGRAM_OPTIONS_H_
