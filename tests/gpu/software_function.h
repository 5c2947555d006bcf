// What the software GPU launches: the kernels of compute/device_*.h by name,
// with what each of them reads and writes.
#ifndef TF_HVD_TESTS_GPU_SOFTWARE_FUNCTION_H_
#define TF_HVD_TESTS_GPU_SOFTWARE_FUNCTION_H_

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

struct CUstream_st;

namespace tf_hvd {

class SoftwareGpu;

struct SoftwareFunction {
  std::string name;
  size_t argument_bytes;  // of the one argument
  // Checks all accesses, then makes them. The machine's lock is held, and the
  // memory of devices accessible.
  std::function<void(SoftwareGpu* gpu, const void* argument, unsigned blocks,
                     int threads, CUstream_st* stream)>
      run;
  // What it reads besides tensors: memory, and bytes.
  std::function<std::vector<std::pair<const void*, size_t>>(
      const void* argument)>
      lists;
};

// Null if there is none.
const SoftwareFunction* FindSoftwareFunction(const std::string& name);

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_SOFTWARE_FUNCTION_H_
