// Makes a thread flush denormals to zero, like TensorFlow's threads.
#ifndef TF_HVD_TESTS_COMPUTE_FLUSHED_DENORMALS_H_
#define TF_HVD_TESTS_COMPUTE_FLUSHED_DENORMALS_H_

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace tf_hvd {

// Makes its thread flush denormals while it exists. On processors where the
// method is unknown, nothing changes.
class FlushedDenormals {
 public:
  FlushedDenormals(const FlushedDenormals&) = delete;
  FlushedDenormals& operator=(const FlushedDenormals&) = delete;

#if defined(__SSE2__)
  FlushedDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kModes); }
  ~FlushedDenormals() { _mm_setcsr(before_); }

  // Whether the thread still flushes.
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
