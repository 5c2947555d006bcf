// The functions behind HorovodFingerprints and HorovodVerdict. Independent of
// TensorFlow; any thread.
#ifndef TF_HVD_KERNELS_VERDICT_H_
#define TF_HVD_KERNELS_VERDICT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace tf_hvd {

class Runtime;

// A 64-bit fingerprint of these bytes.
int64_t FingerprintOf(const void* data, size_t bytes);

// Attributes of HorovodVerdict.
struct Verdict {
  std::vector<std::string> names;
  std::string before;
  std::string after;
  bool fails = false;
};

// `wrong` has `count` elements, one for each name. `passed`: whether all are
// false. Findings that do not fail the op are written to the runtime's log.
Status Tell(const Runtime& runtime, const Verdict& verdict, const bool* wrong,
            size_t count, bool* passed);

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_VERDICT_H_
