// Arithmetic as IEEE 754 has it, whatever the thread was set to.
//
// TensorFlow lets its threads flush denormals to zero, the runtime's own
// thread does not, and a reduction may run on either: without this the bits of
// a result would depend on which thread was faster.
#ifndef TF_HVD_COMPUTE_FLOAT_ENVIRONMENT_H_
#define TF_HVD_COMPUTE_FLOAT_ENVIRONMENT_H_

#if defined(__SSE2__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace tf_hvd {

// A loop for which the class below is made. Never inlined: compilers do not
// know that arithmetic depends on an object.
#define TF_HVD_LOOP __attribute__((noinline))

#if defined(__SSE2__)
// Of the register MXCSR: flush to zero and denormals are zero; the direction.
inline constexpr unsigned kFlushModes = 0x8000u | 0x0040u;
inline constexpr unsigned kRoundingModes = 0x6000u;
#endif

// For as long as it lives its thread rounds to nearest even and keeps
// denormals.
class StandardFloatEnvironment {
 public:
  StandardFloatEnvironment(const StandardFloatEnvironment&) = delete;
  StandardFloatEnvironment& operator=(const StandardFloatEnvironment&) = delete;

#if defined(__SSE2__)
  // The register is read in a few cycles, but slow to write, and rarely has
  // to be.
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
// zero, as TensorFlow's own threads do.
inline void FlushDenormals() {
#if defined(__SSE2__)
  _mm_setcsr((_mm_getcsr() & ~kRoundingModes) | kFlushModes);
#endif
}

}  // namespace tf_hvd

#endif  // TF_HVD_COMPUTE_FLOAT_ENVIRONMENT_H_
