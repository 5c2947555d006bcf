#include "compute/sum_rows_cpu.h"

#include <algorithm>

#include "compute/float_environment.h"

namespace tf_hvd {
namespace {

template <typename T>
TF_HVD_LOOP void SumLoop(const SumRowsArguments& arguments, int64_t begin,
                         int64_t end) {
  const auto* const values = static_cast<const T*>(arguments.values);
  const int64_t columns = arguments.columns;
  for (int64_t sum = begin; sum < end; ++sum) {
    T* const total = static_cast<T*>(arguments.sums) + sum * columns;
    std::fill(total, total + columns, T{0});
    for (int64_t at = sum == 0 ? 0 : arguments.ends[sum - 1];
         at < arguments.ends[sum]; ++at) {
      const T* const row = values + arguments.order[at] * columns;
      for (int64_t i = 0; i < columns; ++i) total[i] = SumOf(total[i], row[i]);
    }
  }
}

}  // namespace

template <typename T>
void SumRowsOnCpu(const SumRowsArguments& arguments, int64_t begin,
                  int64_t end) {
  const StandardFloatEnvironment environment;
  SumLoop<T>(arguments, begin, end);
}

#define TF_HVD_INSTANTIATE(name, T)                                \
  template void SumRowsOnCpu<T>(const SumRowsArguments& arguments, \
                                int64_t begin, int64_t end);
TF_HVD_DEVICE_SUMS(TF_HVD_INSTANTIATE)
#undef TF_HVD_INSTANTIATE

}  // namespace tf_hvd
