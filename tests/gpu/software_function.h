// The kernels of compute/device_*.h that the software GPU can launch, by name,
// with the memory that each of them reads and writes.
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
  size_t argument_bytes;  // size of the single argument
  // Checks all accesses, then makes them. The machine's lock is held, and
  // device memory is accessible.
  std::function<void(SoftwareGpu* gpu, const void* argument, unsigned blocks,
                     int threads, CUstream_st* stream)>
      run;
  // Other memory that it reads, besides tensors: address and bytes.
  std::function<std::vector<std::pair<const void*, size_t>>(
      const void* argument)>
      lists;
};

// Null if there is no such kernel.
const SoftwareFunction* FindSoftwareFunction(const std::string& name);

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_SOFTWARE_FUNCTION_H_
