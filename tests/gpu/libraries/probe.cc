// Prints the results of OpenGpuLibraries in a separate process: libraries are
// never closed, so each search needs a new one.
//
//   probe <driver> <NCCL> <0 or 1: use NCCL> <candidate> [open first]
//
// Prints one line each: the driver's file or the reason why there is none,
// NCCL's version, NCCL's file, the reason why there is no NCCL.
#include <dlfcn.h>

#include <iostream>
#include <string>

#include "runtime/transport/gpu/libraries.h"

int main(int count, char** words) {
  if (count < 5) return 2;
  if (count > 5 && dlopen(words[5], RTLD_NOW | RTLD_LOCAL) == nullptr) {
    std::cerr << dlerror() << "\n";
    return 1;
  }
  const tf_hvd::GpuLibraries found = tf_hvd::OpenGpuLibraries(
      {words[1], words[2], std::string(words[3]) == "1", {words[4]}});
  std::cout << (found.cuda != nullptr ? found.cuda_path : found.no_cuda) << "\n"
            << (found.nccl != nullptr ? found.nccl_version : 0) << "\n"
            << found.nccl_path << "\n"
            << found.no_nccl << "\n";
  return 0;
}
