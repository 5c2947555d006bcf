// Mixed: scrambles the bits of a number so that each output bit depends on all
// input bits. The result is the same on all machines.
#ifndef TF_HVD_BASE_MIX_H_
#define TF_HVD_BASE_MIX_H_

#include <cstdint>

namespace tf_hvd {

// The finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom
// number generators, OOPSLA 2014).
inline uint64_t Mixed(uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}

}  // namespace tf_hvd

#endif  // TF_HVD_BASE_MIX_H_
