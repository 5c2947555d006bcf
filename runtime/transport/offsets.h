// Where parts lie that follow each other.
#ifndef TF_HVD_RUNTIME_TRANSPORT_OFFSETS_H_
#define TF_HVD_RUNTIME_TRANSPORT_OFFSETS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tf_hvd {

// Where each of consecutive parts begins, and where the last one ends.
template <typename Offset>
std::vector<Offset> OffsetsOf(const std::vector<int64_t>& sizes) {
  std::vector<Offset> offsets(sizes.size() + 1);
  for (size_t i = 0; i < sizes.size(); ++i) {
    offsets[i + 1] = offsets[i] + static_cast<Offset>(sizes[i]);
  }
  return offsets;
}

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_OFFSETS_H_
