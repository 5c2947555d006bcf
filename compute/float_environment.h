// IEEE 754 arithmetic, regardless of the thread's settings.
//
// TensorFlow's threads flush denormals to zero, the runtime's thread does not,
// and a reduction may run on either. Without this, the bits of a result would
// depend on which thread was faster.
#ifndef TF_HVD_COMPUTE_FLOAT_ENVIRONMENT_H_
#define TF_HVD_COMPUTE_FLOAT_ENVIRONMENT_H_

#if defined(__SSE2__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace tf_hvd {

// Runs a loop within the class below. Never inlined: compilers do not know that
// arithmetic depends on an object.
#define TF_HVD_LOOP __attribute__((noinline))

#if defined(__SSE2__)
// Bits of the register MXCSR: flush to zero, denormals are zero, and the
// rounding direction.
inline constexpr unsigned kFlushModes = 0x8000u | 0x0040u;
inline constexpr unsigned kRoundingModes = 0x6000u;
#endif

// While it exists, its thread rounds to nearest even and keeps denormals.
class StandardFloatEnvironment {
 public:
  StandardFloatEnvironment(const StandardFloatEnvironment&) = delete;
  StandardFloatEnvironment& operator=(const StandardFloatEnvironment&) = delete;

#if defined(__SSE2__)
  // Reading the register takes a few cycles. Writing is slow, and rarely
  // needed.
  StandardFloatEnvironment() : saved_(_mm_getcsr()) {
    if ((saved_ & kModes) != 0) _mm_setcsr(saved_ & ~kModes);
  }
  ~StandardFloatEnvironment() {
    if ((saved_ & kModes) != 0) _mm_setcsr(saved_);
  }

 private:
  static constexpr unsigned kModes = kFlushModes | kRoundingModes;
  unsigned saved_;
#else
  StandardFloatEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~StandardFloatEnvironment() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
#endif
};

// From here on this thread rounds to nearest even and flushes denormals to
// zero, like TensorFlow's own threads.
inline void FlushDenormals() {
#if defined(__SSE2__)
  _mm_setcsr((_mm_getcsr() & ~kRoundingModes) | kFlushModes);
#endif
}

}  // namespace tf_hvd

#endif  // TF_HVD_COMPUTE_FLOAT_ENVIRONMENT_H_
