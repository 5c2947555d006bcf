#include "tests/gpu/software_function.h"

#include <cstdint>
#include <map>

#include "tests/gpu/software_gpu.h"
#include "tests/gpu/software_kernels.h"
#include "tests/gpu/software_sums.h"

namespace tf_hvd {
namespace {

using Lists = std::vector<std::pair<const void*, size_t>>;

Lists ListsOf(const MoveArguments& arguments) {
  const auto rows = static_cast<size_t>(arguments.row_count);
  Lists lists = {{arguments.rows, rows * sizeof(MoveRow)}};
  if (arguments.first_rows != nullptr) {
    const auto tiles = static_cast<size_t>(
        (arguments.total + arguments.tile - 1) / arguments.tile);
    lists.emplace_back(arguments.first_rows, tiles * sizeof(uint32_t));
  }
  return lists;
}

// Sums read only tensors.
Lists ListsOf(const SumArguments&) { return {}; }

void RunMove(const SoftwareKernel& kernel, SoftwareGpu* gpu,
             const MoveArguments& arguments, unsigned blocks, int threads,
             CUstream_st* stream) {
  bool sound = true;
  for (const auto& [list, bytes] : ListsOf(arguments)) {
    sound = sound && gpu->Touch(stream, list, bytes, false, kernel.name);
  }
  int64_t begin = 0;
  for (int64_t i = 0; sound && i < arguments.row_count; ++i) {
    const MoveRow& row = arguments.rows[i];
    const auto count = static_cast<size_t>(row.end - begin);
    sound = (row.input == nullptr ||
             gpu->Touch(stream, row.input, count * kernel.input_bytes, false,
                        kernel.name)) &&
            gpu->Touch(stream, row.output, count * kernel.output_bytes, true,
                       kernel.name);
    begin = row.end;
  }
  if (!sound) return;
  if (begin != arguments.total ||
      static_cast<int64_t>(blocks) * arguments.tile < arguments.total) {
    return gpu->Fault(std::string(kernel.name) + " does not move all elements");
  }
  for (int64_t tile = 0; tile < static_cast<int64_t>(blocks); ++tile) {
    for (int thread = 0; thread < threads; ++thread) {
      kernel.tile(arguments, tile, thread, threads);
    }
  }
}

void RunSums(const SoftwareSums& kernel, SoftwareGpu* gpu,
             const SumArguments& arguments, unsigned blocks, int threads,
             CUstream_st* stream) {
  const auto touch = [&](const void* memory, int64_t count, bool writes) {
    const size_t bytes = static_cast<size_t>(count) * kernel.element_bytes;
    return gpu->Touch(stream, memory, bytes, writes, kernel.name);
  };
  if (!touch(arguments.vectors, arguments.ranks * arguments.count, false) ||
      !touch(arguments.sums, arguments.count, true)) {
    return;
  }
  for (unsigned block = 0; block < blocks; ++block) {
    for (int thread = 0; thread < threads; ++thread) {
      kernel.block(arguments, block, blocks, thread, threads);
    }
  }
}

template <typename Arguments, typename Kernel>
SoftwareFunction FunctionOf(const Kernel& kernel,
                            void (*run)(const Kernel&, SoftwareGpu*,
                                        const Arguments&, unsigned, int,
                                        CUstream_st*)) {
  return {kernel.name, sizeof(Arguments),
          [&kernel, run](SoftwareGpu* gpu, const void* argument,
                         unsigned blocks, int threads, CUstream_st* stream) {
            run(kernel, gpu, *static_cast<const Arguments*>(argument), blocks,
                threads, stream);
          },
          [](const void* argument) {
            return ListsOf(*static_cast<const Arguments*>(argument));
          }};
}

std::map<std::string, SoftwareFunction> AllFunctions() {
  std::map<std::string, SoftwareFunction> all;
  for (const SoftwareKernel& kernel : SoftwareKernels()) {
    all[kernel.name] = FunctionOf<MoveArguments>(kernel, RunMove);
  }
  for (const SoftwareSums& kernel : SoftwareSumsAll()) {
    all[kernel.name] = FunctionOf<SumArguments>(kernel, RunSums);
  }
  return all;
}

}  // namespace

const SoftwareFunction* FindSoftwareFunction(const std::string& name) {
  static const std::map<std::string, SoftwareFunction> all = AllFunctions();
  const auto found = all.find(name);
  return found == all.end() ? nullptr : &found->second;
}

}  // namespace tf_hvd
