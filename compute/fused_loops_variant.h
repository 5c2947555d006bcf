// The source of one variant of the fused loops. Each file that is compiled for
// an instruction set includes it once. Everything in it has internal linkage,
// and all functions that it calls are inlined, so that code for one processor
// is never called on another.
//
// Sums are not contracted with products (-ffp-contract=off); otherwise some
// variants would round less often than others.
#ifndef TF_HVD_COMPUTE_FUSED_LOOPS_VARIANT_H_
#define TF_HVD_COMPUTE_FUSED_LOOPS_VARIANT_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "compute/buffer_ops_elements.h"
#include "compute/fused_loops.h"

namespace tf_hvd {
namespace {

// Elements that fit in registers and the L1 cache.
constexpr int64_t kChunk = 64;

constexpr size_t kLine = 64;  // bytes

// Bytes up to the next line.
inline size_t ToLine(const void* at) {
  return -reinterpret_cast<uintptr_t>(at) % kLine;
}

// Streams whole lines.
inline void StreamLines(char* to, const char* from, size_t bytes) {
#if defined(__AVX512F__)
  for (size_t at = 0; at < bytes; at += sizeof(__m512i)) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at),
                        _mm512_loadu_si512(from + at));
  }
#elif defined(__AVX2__)
  for (size_t at = 0; at < bytes; at += sizeof(__m256i)) {
    _mm256_stream_si256(
        reinterpret_cast<__m256i*>(to + at),
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at)));
  }
#elif defined(__SSE2__)
  for (size_t at = 0; at < bytes; at += sizeof(__m128i)) {
    _mm_stream_si128(
        reinterpret_cast<__m128i*>(to + at),
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)));
  }
#else
  __builtin_memcpy(to, from, bytes);
#endif
}

// Partial lines at either end are stored as usual.
inline void Stream(void* to, const void* from, size_t bytes) {
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  const size_t before = ToLine(target) < bytes ? ToLine(target) : bytes;
  const size_t lines = (bytes - before) / kLine * kLine;
  __builtin_memcpy(target, source, before);
  target += before;
  source += before;
  StreamLines(target, source, lines);
  __builtin_memcpy(target + lines, source + lines, bytes - before - lines);
}

template <typename E>
inline void LoadChunk(const typename E::Stored* from, int64_t count,
                      typename E::Accumulated* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = E::Load(from[i]);
}

template <typename E>
inline void StoreChunk(const typename E::Accumulated* from, int64_t count,
                       typename E::Stored* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = E::Store(from[i]);
}

#if defined(__AVX2__) && defined(__F16C__)
// Several elements at once, where compilers do not vectorize well.
//
// Halves: the processor's conversions give the bits of half_float.h, except for
// signalling NaNs. Those become quiet here, and when they are stored there.
// Bfloats: the steps of FloatToBfloat; the processor's own conversion would
// treat the smallest numbers as zero.
#if defined(__AVX512F__) && defined(__AVX512BW__)

constexpr int64_t kWidth = 16;
using Floats = __m512;

inline __m256i LoadPacked(const uint16_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
inline void StorePacked(__m256i values, uint16_t* to) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), values);
}
inline Floats LoadFloats(const float* from) { return _mm512_loadu_ps(from); }
inline void StoreFloats(Floats values, float* to) {
  _mm512_storeu_ps(to, values);
}

struct HalfVector {
  static TF_HVD_INLINE Floats Load(__m256i halves) {
    return _mm512_cvtph_ps(halves);
  }
  static TF_HVD_INLINE __m256i Store(Floats values) {
    return _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT);
  }
};

struct BfloatVector {
  static TF_HVD_INLINE Floats Load(__m256i bfloats) {
    const __m512i wide = _mm512_cvtepu16_epi32(bfloats);
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  static TF_HVD_INLINE __m256i Store(Floats values) {
    const __m512i bits = _mm512_castps_si512(values);
    const __m512i high = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i raised = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    const __m512i rounded =
        _mm512_srli_epi32(_mm512_add_epi32(raised, odd), 16);
    const __m512i quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(
        _mm512_mask_blend_epi32(is_nan, rounded, quiet));
  }
};

#else

constexpr int64_t kWidth = 8;
using Floats = __m256;

inline __m128i LoadPacked(const uint16_t* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}
inline void StorePacked(__m128i values, uint16_t* to) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), values);
}
inline Floats LoadFloats(const float* from) { return _mm256_loadu_ps(from); }
inline void StoreFloats(Floats values, float* to) {
  _mm256_storeu_ps(to, values);
}

struct HalfVector {
  static TF_HVD_INLINE Floats Load(__m128i halves) {
    return _mm256_cvtph_ps(halves);
  }
  static TF_HVD_INLINE __m128i Store(Floats values) {
    return _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT);
  }
};

struct BfloatVector {
  static TF_HVD_INLINE Floats Load(__m128i bfloats) {
    const __m256i wide = _mm256_cvtepu16_epi32(bfloats);
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  static TF_HVD_INLINE __m128i Store(Floats values) {
    const __m256i bits = _mm256_castps_si256(values);
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i raised = _mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(raised, odd), 16);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i is_nan =
        _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
    const __m256i chosen = _mm256_blendv_epi8(rounded, quiet, is_nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(chosen),
                            _mm256_extracti128_si256(chosen, 1));
  }
};

#endif

// The remaining elements, one by one.
template <typename E, typename Vector>
inline void LoadVectors(const uint16_t* from, int64_t count, float* to) {
  const int64_t whole = count / kWidth * kWidth;
  for (int64_t i = 0; i < whole; i += kWidth) {
    StoreFloats(Vector::Load(LoadPacked(from + i)), to + i);
  }
  for (int64_t i = whole; i < count; ++i) to[i] = E::Load(from[i]);
}

template <typename E, typename Vector>
inline void StoreVectors(const float* from, int64_t count, uint16_t* to) {
  const int64_t whole = count / kWidth * kWidth;
  for (int64_t i = 0; i < whole; i += kWidth) {
    StorePacked(Vector::Store(LoadFloats(from + i)), to + i);
  }
  for (int64_t i = whole; i < count; ++i) to[i] = E::Store(from[i]);
}

template <>
inline void LoadChunk<HalfElement>(const uint16_t* from, int64_t count,
                                   float* to) {
  LoadVectors<HalfElement, HalfVector>(from, count, to);
}
template <>
inline void StoreChunk<HalfElement>(const float* from, int64_t count,
                                    uint16_t* to) {
  StoreVectors<HalfElement, HalfVector>(from, count, to);
}
template <>
inline void LoadChunk<BfloatElement>(const uint16_t* from, int64_t count,
                                     float* to) {
  LoadVectors<BfloatElement, BfloatVector>(from, count, to);
}
template <>
inline void StoreChunk<BfloatElement>(const float* from, int64_t count,
                                      uint16_t* to) {
  StoreVectors<BfloatElement, BfloatVector>(from, count, to);
}
#endif

template <typename T>
inline void ScaleChunk(T* values, int64_t count, double scale) {
  for (int64_t i = 0; i < count; ++i) values[i] = Product(values[i], scale);
}

template <typename T>
inline void DivideChunk(T* values, int64_t count, double scale,
                        double divisor) {
  if (scale != 1.0) ScaleChunk(values, count, scale);
  if (divisor == 1.0) return;
  for (int64_t i = 0; i < count; ++i) {
    values[i] = Quotient(values[i], 1.0, divisor);
  }
}

// `count` is a constant in all chunks but the last.
template <typename E, typename Op, Scaled kScaled>
inline void ReduceChunk(const void* const* inputs, size_t ranks, int64_t begin,
                        int64_t count, const FusedScales& scales, void* output,
                        void* copy) {
  using Stored = typename E::Stored;
  using Accumulated = typename E::Accumulated;
  alignas(64) Accumulated sums[kChunk];
  alignas(64) Accumulated next[kChunk];
  const auto at = [&](size_t rank) {
    return static_cast<const Stored*>(inputs[rank]) + begin;
  };
  LoadChunk<E>(at(0), count, sums);
  constexpr bool kBefore = kScaled == kThroughout;
  if constexpr (kBefore) ScaleChunk(sums, count, scales.before);
  for (size_t rank = 1; rank < ranks; ++rank) {
    LoadChunk<E>(at(rank), count, next);
    if constexpr (kBefore) ScaleChunk(next, count, scales.before);
    for (int64_t i = 0; i < count; ++i) sums[i] = Op::Apply(sums[i], next[i]);
  }
  if constexpr (kScaled == kProduct) {
    ScaleChunk(sums, count, scales.after);
  } else if constexpr (kScaled != kUnscaled) {
    DivideChunk(sums, count, scales.after, scales.divisor);
  }
  StoreChunk<E>(sums, count, static_cast<Stored*>(output) + begin);
  if (copy != nullptr) {
    __builtin_memcpy(static_cast<Stored*>(copy) + begin,
                     static_cast<Stored*>(output) + begin,
                     static_cast<size_t>(count) * sizeof(Stored));
  }
}

template <typename E, typename Op, Scaled kScaled>
__attribute__((noinline)) void Reduce(const void* const* inputs, size_t ranks,
                                      int64_t count, const FusedScales& scales,
                                      void* output, void* copy) {
  int64_t begin = 0;
  for (; begin + kChunk <= count; begin += kChunk) {
    ReduceChunk<E, Op, kScaled>(inputs, ranks, begin, kChunk, scales, output,
                                copy);
  }
  if (begin < count) {
    ReduceChunk<E, Op, kScaled>(inputs, ranks, begin, count - begin, scales,
                                output, copy);
  }
}

// Integers are scaled in float64 and saturate, so one pass is not possible.
template <typename E, typename Op, Scaled kScaled>
constexpr FusedLoop LoopOf() {
  if constexpr (kScaled == kUnscaled ||
                std::is_floating_point_v<typename E::Accumulated>) {
    return Reduce<E, Op, kScaled>;
  } else {
    return nullptr;
  }
}

template <typename E, typename Op>
constexpr LoopsOfOp AllLoopsOf() {
  return {{LoopOf<E, Op, kUnscaled>(), LoopOf<E, Op, kProduct>(),
           LoopOf<E, Op, kQuotient>(), LoopOf<E, Op, kThroughout>()}};
}

template <typename E>
constexpr FusedLoops NumberLoops() {
  // An average is a sum here (AverageAsSum); an adaptive sum is not supported.
  return {{{},
           AllLoopsOf<E, AddOp>(),
           {},
           AllLoopsOf<E, MinOp>(),
           AllLoopsOf<E, MaxOp>(),
           AllLoopsOf<E, MultiplyOp>()}};
}

// In the order of DType. Not supported: bool, complex.
constexpr FusedLoops kLoops[kDTypeCount] = {
    NumberLoops<NativeElement<uint8_t>>(),
    NumberLoops<NativeElement<int8_t>>(),
    NumberLoops<NativeElement<uint16_t>>(),
    NumberLoops<NativeElement<int16_t>>(),
    NumberLoops<NativeElement<int32_t>>(),
    NumberLoops<NativeElement<int64_t>>(),
    NumberLoops<HalfElement>(),
    NumberLoops<NativeElement<float>>(),
    NumberLoops<NativeElement<double>>(),
    {},
    NumberLoops<BfloatElement>(),
    NumberLoops<NativeElement<uint32_t>>(),
    NumberLoops<NativeElement<uint64_t>>(),
    {},
    {},
};

}  // namespace
}  // namespace tf_hvd

#endif  // TF_HVD_COMPUTE_FUSED_LOOPS_VARIANT_H_
