// Statistics of measurements.
#ifndef TF_HVD_TESTS_GPU_PERCENTILE_H_
#define TF_HVD_TESTS_GPU_PERCENTILE_H_

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tf_hvd {

// The value that this percentage of the measurements do not exceed; 50 is the
// median.
inline double Percentile(std::vector<double> values, int percent) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t at = values.size() * static_cast<size_t>(percent) / 100;
  return values[std::min(at, values.size() - 1)];
}

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_PERCENTILE_H_
