#include "tests/gpu/device_sums_check.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/gpu/mirror.h"
#include "tests/gpu/software_adasum.h"
#include "tests/gpu/software_sums.h"

namespace tf_hvd {
namespace {

template <typename T>
T* As(char* memory) {
  return reinterpret_cast<T*>(memory);
}

// What the device made of its copy against what the host made of its own.
Status Compare(DeviceSide* side, Mirror* memory, const std::string& what) {
  std::vector<char> got(memory->bytes());
  TF_HVD_RETURN_IF_ERROR(
      side->Download(memory->device(), got.data(), got.size()));
  if (std::memcmp(got.data(), memory->host(), got.size()) == 0) {
    return Status::Ok();
  }
  return Internal(what + " differs from the host's");
}

// Numbers whose sums round. (Of others any bits: they wrap around.)
void DrawNumbers(const SoftwareSums& kernel, Mirror* memory,
                 std::mt19937_64* random) {
  const bool is_float = std::strstr(kernel.name, "float") != nullptr;
  for (size_t at = 0; at + 8 <= memory->bytes(); at += kernel.element_bytes) {
    const uint64_t any = (*random)();
    const double real = static_cast<double>(any % 100'001) / 7.0 - 5000.0;
    const auto less = static_cast<float>(real);
    const void* from = &any;
    if (is_float) from = kernel.element_bytes == 8 ? (const void*)&real : &less;
    std::memcpy(memory->host() + at, from, kernel.element_bytes);
  }
}

// Some sums of no rows, some of one, some of many.
Status CheckRowSums(DeviceSide* side, const SoftwareSums& kernel,
                    int64_t columns, std::mt19937_64* random) {
  constexpr int64_t kRows = 3000;
  constexpr int64_t kSums = 200;
  const auto bytes = static_cast<size_t>(columns) * kernel.element_bytes;
  Mirror values(kRows * bytes + 8);
  Mirror order(kRows * sizeof(int64_t));
  Mirror ends(kSums * sizeof(int64_t));
  Mirror sums(kSums * bytes);
  DrawNumbers(kernel, &values, random);
  auto* const numbers = As<int64_t>(order.host());
  for (int64_t i = 0; i < kRows; ++i) numbers[i] = i;
  std::shuffle(numbers, numbers + kRows, *random);
  auto* const last = As<int64_t>(ends.host());
  for (int64_t i = 0; i < kSums; ++i) {
    last[i] = static_cast<int64_t>((*random)() % kRows);
  }
  std::sort(last, last + kSums);
  last[kSums - 1] = kRows;
  for (Mirror* memory : {&values, &order, &ends, &sums}) {
    TF_HVD_RETURN_IF_ERROR(memory->Open(side));
  }
  const auto at = [&](bool there) {
    const auto of = [there](Mirror& memory) {
      return there ? memory.device() : memory.host();
    };
    return SumRowsArguments{of(values),
                            As<int64_t>(of(order)),
                            As<int64_t>(of(ends)),
                            of(sums),
                            kRows,
                            kSums,
                            columns};
  };
  SumRowsArguments there = at(true);
  void* arguments[] = {&there};
  // Fewer blocks than there are elements: each thread takes several.
  constexpr unsigned kBlocks = 5;
  TF_HVD_RETURN_IF_ERROR(side->device()->Launch(
      side->stream(), kernel.name, kBlocks, kSumRowsThreads, arguments));
  for (int64_t block = 0; block < kBlocks; ++block) {
    for (int thread = 0; thread < kSumRowsThreads; ++thread) {
      kernel.block(at(false), block, kBlocks, thread, kSumRowsThreads);
    }
  }
  const Status same = Compare(side, &sums, kernel.name);
  for (Mirror* memory : {&values, &order, &ends, &sums}) {
    side->Free(memory->device());
  }
  return same;
}

// Two vectors of several tensors: their products, added to other products, and
// the combination.
class AdasumCheck {
 public:
  AdasumCheck(DeviceSide* side, size_t element_bytes)
      : side_(side),
        element_(element_bytes),
        a_(kElements * element_bytes),
        b_(kElements * element_bytes),
        output_(kElements * element_bytes),
        rows_(kRows * sizeof(AdasumRow)),
        partials_(kElements * sizeof(AdasumProducts)),
        products_(kRows * sizeof(AdasumProducts)),
        incoming_(kRows * sizeof(AdasumProducts)) {}

  Status Run(std::mt19937_64* random) {
    Fill(&a_, random);
    Fill(&b_, random);
    for (size_t i = 0; i < kRows; ++i) {
      As<AdasumProducts>(incoming_.host())[i] = {0.3 * static_cast<double>(i),
                                                 7.7, 1e-3};
    }
    for (Mirror* memory : All()) TF_HVD_RETURN_IF_ERROR(memory->Open(side_));
    Point(/*there=*/true);
    TF_HVD_RETURN_IF_ERROR(
        side_->Upload(rows_.device(), rows_.host(), rows_.bytes()));
    arguments_.rows = As<AdasumRow>(rows_.device());
    const auto on_device = [this](const char* kernel, unsigned blocks) {
      void* values[] = {&arguments_};
      return side_->device()->Launch(side_->stream(), kernel, blocks,
                                     kAdasumThreads, values);
    };
    TF_HVD_RETURN_IF_ERROR(Steps(on_device));
    Point(/*there=*/false);
    const auto on_host = [this](const char* kernel, unsigned blocks) {
      for (unsigned block = 0; block < blocks; ++block) {
        FindSoftwareAdasum(kernel)->block(arguments_, block, kAdasumThreads,
                                          /*backwards=*/false);
      }
      return Status::Ok();
    };
    TF_HVD_RETURN_IF_ERROR(Steps(on_host));
    TF_HVD_RETURN_IF_ERROR(Compare(side_, &products_, "Adasum's products"));
    TF_HVD_RETURN_IF_ERROR(Compare(side_, &output_, "Adasum's combination"));
    for (Mirror* memory : All()) side_->Free(memory->device());
    return Status::Ok();
  }

  static constexpr int kLaunches = 4;

 private:
  static constexpr int64_t kCounts[] = {1, 5000, 0, 257, 20'001};
  static constexpr size_t kRows = 5;
  static constexpr int64_t kElements = 1 + 5000 + 257 + 20'001;
  static constexpr int64_t kTile = 1024;

  std::vector<Mirror*> All() {
    return {&a_, &b_, &output_, &rows_, &partials_, &products_, &incoming_};
  }

  void Fill(Mirror* memory, std::mt19937_64* random) const {
    for (int64_t i = 0; i < kElements; ++i) {
      const double value = static_cast<double>((*random)() % 9001) / 7.0 - 600;
      if (element_ == sizeof(float)) {
        As<float>(memory->host())[i] = static_cast<float>(value);
      } else {
        As<double>(memory->host())[i] = value;
      }
    }
  }

  // The rows, and the arguments, of memory there or here.
  void Point(bool there) {
    const auto of = [there](Mirror& memory) {
      return there ? memory.device() : memory.host();
    };
    size_t at = 0;
    tiles_ = 0;
    for (size_t i = 0; i < kRows; ++i) {
      tiles_ += (kCounts[i] + kTile - 1) / kTile;
      As<AdasumRow>(rows_.host())[i] = {of(a_) + at, of(b_) + at,
                                        of(output_) + at, kCounts[i], tiles_};
      at += static_cast<size_t>(kCounts[i]) * element_;
    }
    arguments_ = {As<AdasumRow>(rows_.host()),
                  static_cast<int64_t>(kRows),
                  kTile,
                  As<AdasumProducts>(of(partials_)),
                  As<AdasumProducts>(of(products_)),
                  As<AdasumProducts>(of(incoming_))};
  }

  template <typename Launch>
  Status Steps(const Launch& launch) const {
    const bool is_float = element_ == sizeof(float);
    const auto tiles = static_cast<unsigned>(tiles_);
    TF_HVD_RETURN_IF_ERROR(
        launch(is_float ? "tf_hvd_dot_float32" : "tf_hvd_dot_float64", tiles));
    TF_HVD_RETURN_IF_ERROR(launch("tf_hvd_fold_products", kRows));
    TF_HVD_RETURN_IF_ERROR(launch("tf_hvd_add_products", 1));
    return launch(
        is_float ? "tf_hvd_combine_float32" : "tf_hvd_combine_float64", tiles);
  }

  DeviceSide* const side_;
  const size_t element_;
  Mirror a_;
  Mirror b_;
  Mirror output_;
  Mirror rows_;
  Mirror partials_;
  Mirror products_;
  Mirror incoming_;
  int64_t tiles_ = 0;
  AdasumArguments arguments_{};
};

}  // namespace

Status CheckSums(DeviceSide* side, int* launches) {
  std::mt19937_64 random(12);
  *launches = 0;
  for (const SoftwareSums& kernel : SoftwareSumsAll()) {
    for (const int64_t columns : {1, 7, 64}) {
      TF_HVD_RETURN_IF_ERROR(CheckRowSums(side, kernel, columns, &random));
      ++*launches;
    }
  }
  for (const size_t element : {sizeof(float), sizeof(double)}) {
    TF_HVD_RETURN_IF_ERROR(AdasumCheck(side, element).Run(&random));
    *launches += AdasumCheck::kLaunches;
  }
  return Status::Ok();
}

}  // namespace tf_hvd
