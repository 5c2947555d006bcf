// A thread that flushes denormals to zero, as TensorFlow's do.
#ifndef TF_HVD_TESTS_COMPUTE_FLUSHED_DENORMALS_H_
#define TF_HVD_TESTS_COMPUTE_FLUSHED_DENORMALS_H_

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace tf_hvd {

// So is its thread for as long as it lives; where that is not known how, as it
// was.
class FlushedDenormals {
 public:
  FlushedDenormals(const FlushedDenormals&) = delete;
  FlushedDenormals& operator=(const FlushedDenormals&) = delete;

#if defined(__SSE2__)
  FlushedDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kModes); }
  ~FlushedDenormals() { _mm_setcsr(before_); }

  // Whether it still is.
  bool flushes() const { return (_mm_getcsr() & kModes) == kModes; }

 private:
  static constexpr unsigned kModes = 0x8040u;
  const unsigned before_;
#else
  FlushedDenormals() {}
  ~FlushedDenormals() {}

  bool flushes() const { return true; }
#endif
};

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_COMPUTE_FLUSHED_DENORMALS_H_
