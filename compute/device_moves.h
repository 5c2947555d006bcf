// Moves tensors within a GPU: packs any number of them into one buffer, or
// unpacks them, in one launch, and can scale or convert them. The functions
// here are those of one thread of a launch. device_moves.cu.cc makes kernels of
// them; the software GPU of the tests calls the same functions.
#ifndef TF_HVD_COMPUTE_DEVICE_MOVES_H_
#define TF_HVD_COMPUTE_DEVICE_MOVES_H_

#include "compute/portable.h"
#include "compute/scaling.h"
#include "compute/stored_elements.h"

namespace tf_hvd {

// One of the tensors to move, as one run of elements.
struct MoveRow {
  const void* input;  // null: zeros, which are not scaled: 0 times -1 is -0
  void* output;
  int64_t end;  // elements of the run before its end
};

// The single argument of the kernels. Rows are in pinned memory, which a device
// reads across its bus: a tile reads as few of them as possible.
struct MoveArguments {
  const MoveRow* rows;
  int64_t row_count;  // at least one
  int64_t total;      // elements
  int64_t tile;       // elements that a block moves
  // Scaling: each number is multiplied by `factor` and divided by `divisor`.
  double factor;
  double divisor;
  // The row in which each tile begins; null: tiles search for it.
  const uint32_t* first_rows = nullptr;
};

// Whether numbers are scaled: decided once for many of them.
enum class ScaledBy { kNothing, kFactor, kQuotient };

TF_HVD_INLINE ScaledBy ScalesBy(const MoveArguments& arguments) {
  if (arguments.divisor != 1.0) return ScaledBy::kQuotient;
  return arguments.factor != 1.0 ? ScaledBy::kFactor : ScaledBy::kNothing;
}

// Scales a number.
template <ScaledBy kScaledBy, typename T>
TF_HVD_INLINE T Scaled(T value, const MoveArguments& arguments) {
  if constexpr (kScaledBy == ScaledBy::kNothing) {
    return value;
  } else if constexpr (kScaledBy == ScaledBy::kFactor) {
    return ScaledReal(value, arguments.factor);
  } else {
    return QuotientReal(value, arguments.factor, arguments.divisor);
  }
}

// The ways to move an element. For In and Out see stored_elements.h.
template <typename E>
struct CopyElement {
  using In = E;
  using Out = E;
  template <ScaledBy>
  static TF_HVD_INLINE typename E::Stored Apply(typename E::Stored stored,
                                                const MoveArguments&) {
    return stored;
  }
};

template <typename InElement, typename OutElement>
struct ScaleElement {
  using In = InElement;
  using Out = OutElement;
  template <ScaledBy kScaledBy>
  static TF_HVD_INLINE typename Out::Stored Apply(
      typename In::Stored stored, const MoveArguments& arguments) {
    return Out::Store(Scaled<kScaledBy>(In::Load(stored), arguments));
  }
};

// Compression: float32 numbers that are sent in a half precision `E`. The bits
// are those of a cast followed by ScaleElement<E, E>.
template <typename E>
struct NarrowElement {
  using In = NativeElement<float>;
  using Out = E;
  template <ScaledBy kScaledBy>
  static TF_HVD_INLINE uint16_t Apply(float stored,
                                      const MoveArguments& arguments) {
    const uint16_t narrow = E::Store(stored);
    if constexpr (kScaledBy == ScaledBy::kNothing) return narrow;
    return ScaleElement<E, E>::template Apply<kScaledBy>(narrow, arguments);
  }
};

template <typename E>
struct WidenElement {
  using In = E;
  using Out = NativeElement<float>;
  template <ScaledBy kScaledBy>
  static TF_HVD_INLINE float Apply(uint16_t stored,
                                   const MoveArguments& arguments) {
    if constexpr (kScaledBy == ScaledBy::kNothing) return E::Load(stored);
    return E::Load(
        ScaleElement<E, E>::template Apply<kScaledBy>(stored, arguments));
  }
};

// Any byte but 0 becomes 1, so that true has one form when bytes are compared.
struct NormalizeBool {
  using In = BoolElement;
  using Out = BoolElement;
  template <ScaledBy>
  static TF_HVD_INLINE uint8_t Apply(uint8_t stored, const MoveArguments&) {
    return BoolElement::Load(stored);
  }
};

// Kernels: name and way to move.
#define TF_HVD_DEVICE_MOVES(MOVE)                       \
  MOVE(tf_hvd_copy_1, CopyUnits<uint8_t>)               \
  MOVE(tf_hvd_copy_2, CopyUnits<uint16_t>)              \
  MOVE(tf_hvd_copy_4, CopyUnits<uint32_t>)              \
  MOVE(tf_hvd_copy_8, CopyUnits<uint64_t>)              \
  MOVE(tf_hvd_scale_uint8, ScaleNumber<uint8_t>)        \
  MOVE(tf_hvd_scale_int8, ScaleNumber<int8_t>)          \
  MOVE(tf_hvd_scale_uint16, ScaleNumber<uint16_t>)      \
  MOVE(tf_hvd_scale_int16, ScaleNumber<int16_t>)        \
  MOVE(tf_hvd_scale_int32, ScaleNumber<int32_t>)        \
  MOVE(tf_hvd_scale_int64, ScaleNumber<int64_t>)        \
  MOVE(tf_hvd_scale_uint32, ScaleNumber<uint32_t>)      \
  MOVE(tf_hvd_scale_uint64, ScaleNumber<uint64_t>)      \
  MOVE(tf_hvd_scale_float16, ScaleHalf)                 \
  MOVE(tf_hvd_scale_bfloat16, ScaleBfloat)              \
  MOVE(tf_hvd_scale_float32, ScaleNumber<float>)        \
  MOVE(tf_hvd_scale_float64, ScaleNumber<double>)       \
  MOVE(tf_hvd_scale_bool, NormalizeBool)                \
  MOVE(tf_hvd_narrow_float16, NarrowToHalf)             \
  MOVE(tf_hvd_widen_float16, WidenHalf)                 \
  MOVE(tf_hvd_narrow_bfloat16, NarrowToBfloat)          \
  MOVE(tf_hvd_widen_bfloat16, WidenBfloat)              \
  MOVE(tf_hvd_cast_float32_float16, CastFloatToHalf)    \
  MOVE(tf_hvd_cast_float16_float32, CastHalfToFloat)    \
  MOVE(tf_hvd_cast_float32_bfloat16, CastFloatToBfloat) \
  MOVE(tf_hvd_cast_bfloat16_float32, CastBfloatToFloat)

template <typename T>
using CopyUnits = CopyElement<NativeElement<T>>;
template <typename T>
using ScaleNumber = ScaleElement<NativeElement<T>, NativeElement<T>>;
using ScaleHalf = ScaleElement<HalfElement, HalfElement>;
using ScaleBfloat = ScaleElement<BfloatElement, BfloatElement>;
using NarrowToHalf = NarrowElement<HalfElement>;
using WidenHalf = WidenElement<HalfElement>;
using NarrowToBfloat = NarrowElement<BfloatElement>;
using WidenBfloat = WidenElement<BfloatElement>;
using CastFloatToHalf = ScaleElement<NativeElement<float>, HalfElement>;
using CastHalfToFloat = ScaleElement<HalfElement, NativeElement<float>>;
using CastFloatToBfloat = ScaleElement<NativeElement<float>, BfloatElement>;
using CastBfloatToFloat = ScaleElement<BfloatElement, NativeElement<float>>;

// A group of elements that is read or written at once.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) ElementPack {
  T of[kCount];
};

// Moves a tile's part of one row: `count` elements from `input`, or zeros, to
// `output`. Uses packs of 16 bytes as far as both sides are aligned.
template <typename Way, ScaledBy kScaledBy>
TF_HVD_INLINE void MovePart(const typename Way::In::Stored* input,
                            typename Way::Out::Stored* output, int64_t count,
                            int thread, int threads,
                            const MoveArguments& arguments) {
  using In = typename Way::In::Stored;
  using Out = typename Way::Out::Stored;
  constexpr int kWider =
      static_cast<int>(sizeof(In) > sizeof(Out) ? sizeof(In) : sizeof(Out));
  constexpr int kPack = 16 / kWider;
  using InPack = ElementPack<In, kPack>;
  using OutPack = ElementPack<Out, kPack>;
  const auto out_address = reinterpret_cast<uintptr_t>(output);
  const auto in_address = reinterpret_cast<uintptr_t>(input);
  // Elements before the first whole pack of the output.
  int64_t head =
      static_cast<int64_t>((sizeof(OutPack) - out_address % sizeof(OutPack)) %
                           sizeof(OutPack) / sizeof(Out));
  const bool aligned =
      input == nullptr ||
      (in_address + static_cast<uintptr_t>(head) * sizeof(In)) %
              sizeof(InPack) ==
          0;
  if (!aligned || head > count) head = count;
  for (int64_t i = thread; i < head; i += threads) {
    output[i] = input == nullptr
                    ? Out{0}
                    : Way::template Apply<kScaledBy>(input[i], arguments);
  }
  const int64_t packs = (count - head) / kPack;
  for (int64_t i = thread; i < packs; i += threads) {
    OutPack out{};
    if (input != nullptr) {
      const InPack in = reinterpret_cast<const InPack*>(input + head)[i];
      for (int k = 0; k < kPack; ++k) {
        out.of[k] = Way::template Apply<kScaledBy>(in.of[k], arguments);
      }
    }
    reinterpret_cast<OutPack*>(output + head)[i] = out;
  }
  for (int64_t i = head + packs * kPack + thread; i < count; i += threads) {
    output[i] = input == nullptr
                    ? Out{0}
                    : Way::template Apply<kScaledBy>(input[i], arguments);
  }
}

// The first row that ends after element `begin`, the start of tile `tile`.
TF_HVD_INLINE int64_t FirstRow(const MoveArguments& arguments, int64_t tile,
                               int64_t begin) {
  if (arguments.first_rows != nullptr) return arguments.first_rows[tile];
  int64_t row = 0;
  for (int64_t high = arguments.row_count - 1; row < high;) {
    const int64_t middle = row + (high - row) / 2;
    if (arguments.rows[middle].end > begin) {
      high = middle;
    } else {
      row = middle + 1;
    }
  }
  return row;
}

template <typename Way, ScaledBy kScaledBy>
TF_HVD_INLINE void MoveParts(const MoveArguments& arguments, int64_t tile,
                             int thread, int threads) {
  using In = typename Way::In::Stored;
  using Out = typename Way::Out::Stored;
  const MoveRow* const rows = arguments.rows;
  int64_t begin = tile * arguments.tile;
  int64_t end = begin + arguments.tile;
  if (end > arguments.total) end = arguments.total;
  int64_t row = FirstRow(arguments, tile, begin);
  for (; begin < end; ++row) {
    const int64_t row_begin = row == 0 ? 0 : rows[row - 1].end;
    const int64_t part_end = rows[row].end < end ? rows[row].end : end;
    const int64_t offset = begin - row_begin;
    const auto* const input = static_cast<const In*>(rows[row].input);
    MovePart<Way, kScaledBy>(input == nullptr ? nullptr : input + offset,
                             static_cast<Out*>(rows[row].output) + offset,
                             part_end - begin, thread, threads, arguments);
    begin = part_end;
  }
}

// The work of thread `thread` of the `threads` of block `tile`.
template <typename Way>
TF_HVD_INLINE void MoveTile(const MoveArguments& arguments, int64_t tile,
                            int thread, int threads) {
  switch (ScalesBy(arguments)) {
    case ScaledBy::kNothing:
      MoveParts<Way, ScaledBy::kNothing>(arguments, tile, thread, threads);
      break;
    case ScaledBy::kFactor:
      MoveParts<Way, ScaledBy::kFactor>(arguments, tile, thread, threads);
      break;
    case ScaledBy::kQuotient:
      MoveParts<Way, ScaledBy::kQuotient>(arguments, tile, thread, threads);
      break;
  }
}

}  // namespace tf_hvd

#endif  // TF_HVD_COMPUTE_DEVICE_MOVES_H_
