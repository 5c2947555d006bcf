// What HorovodFingerprints and HorovodVerdict do. Knows nothing of TensorFlow;
// any thread.
#ifndef TF_HVD_KERNELS_VERDICT_H_
#define TF_HVD_KERNELS_VERDICT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace tf_hvd {

class Runtime;

// 64 bits that stand for these bytes.
int64_t FingerprintOf(const void* data, size_t bytes);

// Attributes of HorovodVerdict.
struct Verdict {
  std::vector<std::string> names;
  std::string before;
  std::string after;
  bool fails = false;
};

// `wrong` has `count` elements, one for each name; `passed`: whether none is
// true. What is no error is said in the runtime's log.
Status Tell(const Runtime& runtime, const Verdict& verdict, const bool* wrong,
            size_t count, bool* passed);

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_VERDICT_H_
