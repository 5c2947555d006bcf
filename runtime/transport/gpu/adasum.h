// GpuAdasum: one launch of a kernel of compute/device_adasum.h.
#ifndef TF_HVD_RUNTIME_TRANSPORT_GPU_ADASUM_H_
#define TF_HVD_RUNTIME_TRANSPORT_GPU_ADASUM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "compute/device_adasum.h"

namespace tf_hvd {

struct GpuAdasum {
  static constexpr unsigned kThreads = kAdasumThreads;
  // Elements that a block works on.
  static constexpr int64_t kTile = 8192;

  std::string kernel;
  std::vector<AdasumRow> rows;
  AdasumArguments arguments{};  // but for the rows
  unsigned blocks = 0;

  size_t row_bytes() const { return rows.size() * sizeof(AdasumRow); }
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_ADASUM_H_
