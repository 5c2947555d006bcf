#include "tests/gpu/software_function.h"

#include <cstdint>
#include <map>

#include "tests/gpu/software_adasum.h"
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

Lists ListsOf(const AdasumArguments& arguments) {
  if (arguments.rows == nullptr) return {};
  return {{arguments.rows,
           static_cast<size_t>(arguments.row_count) * sizeof(AdasumRow)}};
}

Lists ListsOf(const SumRowsArguments& arguments) {
  return {
      {arguments.order, static_cast<size_t>(arguments.rows) * sizeof(int64_t)},
      {arguments.ends,
       static_cast<size_t>(arguments.sum_count) * sizeof(int64_t)}};
}

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

// What one kernel of Adasum touches.
class AdasumAccess {
 public:
  AdasumAccess(SoftwareGpu* gpu, CUstream_st* stream,
               const AdasumArguments& arguments, const std::string& name)
      : gpu_(gpu),
        stream_(stream),
        arguments_(arguments),
        name_(name),
        element_(name.find("float64") != std::string::npos ? 8 : 4) {}

  // True if all is well, with so many blocks.
  bool Check(int64_t blocks, int threads) {
    const int64_t rows = arguments_.row_count;
    if (name_ == "tf_hvd_add_products") {
      return Products(arguments_.incoming, rows, false) &&
             Products(arguments_.products, rows, true) &&
             Enough(blocks * threads >= rows);
    }
    if (!Touch(arguments_.rows, rows, sizeof(AdasumRow), false)) return false;
    const int64_t tiles = rows == 0 ? 0 : arguments_.rows[rows - 1].last;
    if (name_ == "tf_hvd_fold_products") {
      return Products(arguments_.partials, tiles, false) &&
             Products(arguments_.products, rows, true) &&
             Enough(blocks == rows);
    }
    const bool combines = name_.find("combine") != std::string::npos;
    const bool sound = combines ? Products(arguments_.products, rows, false)
                                : Products(arguments_.partials, tiles, true);
    return sound && Vectors(combines) && Enough(blocks == tiles);
  }

 private:
  bool Vectors(bool combines) {
    bool sound = true;
    for (int64_t i = 0; sound && i < arguments_.row_count; ++i) {
      const AdasumRow& row = arguments_.rows[i];
      sound = Touch(row.a, row.count, element_, false) &&
              Touch(row.b, row.count, element_, false) &&
              (!combines || Touch(row.output, row.count, element_, true));
    }
    return sound;
  }
  bool Touch(const void* memory, int64_t count, size_t bytes, bool writes) {
    return gpu_->Touch(stream_, memory, static_cast<size_t>(count) * bytes,
                       writes, name_);
  }
  bool Products(const AdasumProducts* products, int64_t count, bool writes) {
    return Touch(products, count, sizeof(AdasumProducts), writes);
  }
  bool Enough(bool enough) {
    if (!enough) gpu_->Fault(name_ + " has too few blocks, or too many");
    return enough;
  }

  SoftwareGpu* const gpu_;
  CUstream_st* const stream_;
  const AdasumArguments& arguments_;
  const std::string& name_;
  const size_t element_;
};

void RunAdasum(const SoftwareAdasum& kernel, SoftwareGpu* gpu,
               const AdasumArguments& arguments, unsigned blocks, int threads,
               CUstream_st* stream) {
  const std::string name = kernel.name;
  if (threads != kAdasumThreads) {
    return gpu->Fault(name + " has another number of threads");
  }
  if (!AdasumAccess(gpu, stream, arguments, name).Check(blocks, threads)) {
    return;
  }
  for (int64_t block = 0; block < static_cast<int64_t>(blocks); ++block) {
    kernel.block(arguments, block, threads, gpu->Draw(2) == 0);
  }
}

void RunSums(const SoftwareSums& kernel, SoftwareGpu* gpu,
             const SumRowsArguments& arguments, unsigned blocks, int threads,
             CUstream_st* stream) {
  const auto touch = [&](const void* memory, int64_t count, size_t bytes,
                         bool writes) {
    return gpu->Touch(stream, memory, static_cast<size_t>(count) * bytes,
                      writes, kernel.name);
  };
  const int64_t columns = arguments.columns;
  if (!touch(arguments.values, arguments.rows * columns, kernel.element_bytes,
             false) ||
      !touch(arguments.order, arguments.rows, sizeof(int64_t), false) ||
      !touch(arguments.ends, arguments.sum_count, sizeof(int64_t), false) ||
      !touch(arguments.sums, arguments.sum_count * columns,
             kernel.element_bytes, true)) {
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
  for (const SoftwareAdasum& kernel : SoftwareAdasums()) {
    all[kernel.name] = FunctionOf<AdasumArguments>(kernel, RunAdasum);
  }
  for (const SoftwareSums& kernel : SoftwareSumsAll()) {
    all[kernel.name] = FunctionOf<SumRowsArguments>(kernel, RunSums);
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
