#include <algorithm>
#include <complex>
#include <cstring>

#include "compute/buffer_ops.h"
#include "compute/buffer_ops_elements.h"
#include "compute/float_environment.h"
#include "compute/fused_loops.h"
#include "compute/streaming.h"

namespace tf_hvd {
namespace {

// The loops. Buffers are equal or do not overlap, so iterations are
// independent. Compilers cannot know this; `ivdep` declares it.

template <typename E, bool kScale>
TF_HVD_LOOP void LoadLoop(void* accumulator, const void* input, int64_t count,
                          double scale) {
  auto* out = static_cast<typename E::Accumulated*>(accumulator);
  const auto* in = static_cast<const typename E::Stored*>(input);
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const auto value = E::Load(in[i]);
    out[i] = kScale ? Product(value, scale) : value;
  }
}

template <typename E, typename Op, bool kScale>
TF_HVD_LOOP void AccumulateLoop(void* accumulator, const void* input,
                                int64_t count, double scale) {
  auto* out = static_cast<typename E::Accumulated*>(accumulator);
  const auto* in = static_cast<const typename E::Stored*>(input);
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const auto value = E::Load(in[i]);
    out[i] = Op::Apply(out[i], kScale ? Product(value, scale) : value);
  }
}

template <typename E, bool kScale>
TF_HVD_LOOP void StoreLoop(void* output, const void* accumulator, int64_t count,
                           double scale) {
  auto* out = static_cast<typename E::Stored*>(output);
  const auto* in = static_cast<const typename E::Accumulated*>(accumulator);
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    out[i] = E::Store(kScale ? Product(in[i], scale) : in[i]);
  }
}

template <typename E>
TF_HVD_LOOP void StoreQuotientLoop(void* output, const void* accumulator,
                                   int64_t count, double scale,
                                   double divisor) {
  auto* out = static_cast<typename E::Stored*>(output);
  const auto* in = static_cast<const typename E::Accumulated*>(accumulator);
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    out[i] = E::Store(Quotient(in[i], scale, divisor));
  }
}

using QuotientLoop = void (*)(void* out, const void* in, int64_t count,
                              double scale, double divisor);

using Loop = void (*)(void* out, const void* in, int64_t count, double scale);

// Loops without and with a scale; null if undefined.
struct LoopPair {
  Loop of[2] = {nullptr, nullptr};
};

// All loops of one element type.
struct Loops {
  LoopPair load;
  LoopPair store;
  QuotientLoop quotient;
  // In the order of ReduceOp. Average adds.
  LoopPair accumulate[kReduceOpCount];
};

template <typename E, typename Op>
constexpr LoopPair Accumulating() {
  return {{AccumulateLoop<E, Op, false>, AccumulateLoop<E, Op, true>}};
}

template <typename E>
constexpr Loops LoopsWith(LoopPair min, LoopPair max) {
  return {{{LoadLoop<E, false>, LoadLoop<E, true>}},
          {{StoreLoop<E, false>, StoreLoop<E, true>}},
          StoreQuotientLoop<E>,
          {Accumulating<E, AddOp>(),
           Accumulating<E, AddOp>(),
           {},
           min,
           max,
           Accumulating<E, MultiplyOp>()}};
}

template <typename E>
constexpr Loops NumberLoops() {
  return LoopsWith<E>(Accumulating<E, MinOp>(), Accumulating<E, MaxOp>());
}

// Complex numbers are not ordered.
template <typename T>
constexpr Loops ComplexLoops() {
  return LoopsWith<NativeElement<std::complex<T>>>({}, {});
}

// Bool ignores scales and does not support averages.
constexpr Loops BoolLoops() {
  constexpr Loop kLoad = LoadLoop<BoolElement, false>;
  constexpr Loop kStore = StoreLoop<BoolElement, false>;
  constexpr Loop kAnd = AccumulateLoop<BoolElement, AndOp, false>;
  constexpr Loop kOr = AccumulateLoop<BoolElement, OrOp, false>;
  return {{{kLoad, kLoad}},
          {{kStore, kStore}},
          nullptr,
          {{}, {{kOr, kOr}}, {}, {{kAnd, kAnd}}, {{kOr, kOr}}, {{kAnd, kAnd}}}};
}

// In the order of DType.
constexpr Loops kLoops[kDTypeCount] = {
    NumberLoops<NativeElement<uint8_t>>(),
    NumberLoops<NativeElement<int8_t>>(),
    NumberLoops<NativeElement<uint16_t>>(),
    NumberLoops<NativeElement<int16_t>>(),
    NumberLoops<NativeElement<int32_t>>(),
    NumberLoops<NativeElement<int64_t>>(),
    NumberLoops<HalfElement>(),
    NumberLoops<NativeElement<float>>(),
    NumberLoops<NativeElement<double>>(),
    BoolLoops(),
    NumberLoops<BfloatElement>(),
    NumberLoops<NativeElement<uint32_t>>(),
    NumberLoops<NativeElement<uint64_t>>(),
    ComplexLoops<float>(),
    ComplexLoops<double>(),
};

const Loops& LoopsOf(DType dtype) { return kLoops[static_cast<size_t>(dtype)]; }

// Null if the operation is not elementwise or not defined for the type.
Loop AccumulateLoopOf(DType dtype, ReduceOp op, bool scaled) {
  const auto index = static_cast<size_t>(op);
  if (index >= kReduceOpCount) return nullptr;
  return LoopsOf(dtype).accumulate[index].of[scaled];
}

}  // namespace

bool IsReducible(DType dtype, ReduceOp op) {
  return static_cast<int>(dtype) < kDTypeCount &&
         AccumulateLoopOf(dtype, op, /*scaled=*/false) != nullptr;
}

DType AccumulatorOf(DType dtype) {
  const bool half = dtype == DType::kFloat16 || dtype == DType::kBfloat16;
  return half ? DType::kFloat32 : dtype;
}

void LoadAccumulator(DType dtype, void* accumulator, const void* input,
                     int64_t count, double scale) {
  if (count <= 0) return;
  if (input == nullptr) {
    // Zero is all bits zero in every type.
    std::memset(accumulator, 0,
                static_cast<size_t>(count) * SizeOf(AccumulatorOf(dtype)));
    return;
  }
  const StandardFloatEnvironment environment;
  LoopsOf(dtype).load.of[scale != 1.0](accumulator, input, count, scale);
}

void Accumulate(DType dtype, ReduceOp op, void* accumulator, const void* input,
                int64_t count, double scale) {
  const Loop loop = AccumulateLoopOf(dtype, op, scale != 1.0);
  if (loop == nullptr || count <= 0) return;
  const StandardFloatEnvironment environment;
  loop(accumulator, input, count, scale);
}

void StoreAccumulator(DType dtype, void* output, const void* accumulator,
                      int64_t count, double scale, double divisor) {
  if (count <= 0) return;
  const StandardFloatEnvironment environment;
  const QuotientLoop quotient = LoopsOf(dtype).quotient;
  if (divisor != 1.0 && quotient != nullptr) {
    return quotient(output, accumulator, count, scale, divisor);
  }
  LoopsOf(dtype).store.of[scale != 1.0](output, accumulator, count, scale);
}

ReduceOptions AverageAsSum(const ReduceOptions& options, size_t ranks) {
  ReduceOptions result = options;
  if (options.op == ReduceOp::kAverage) {
    result.op = ReduceOp::kSum;
    const auto divisor = static_cast<double>(ranks);
    const bool power_of_two = (ranks & (ranks - 1)) == 0;
    if (power_of_two && options.postscale == 1.0) {
      result.postscale = 1.0 / divisor;
    } else {
      result.divisor = divisor;
    }
  }
  return result;
}

namespace {

// If no loop does everything in one pass: block by block, so that partial
// results stay in the L1 cache.
void ReduceInBlocks(const ReduceOptions& options,
                    const std::vector<const void*>& inputs, int64_t count,
                    void* output, void* copy) {
  constexpr int64_t kBlock = 2048;
  constexpr size_t kLargestElement = 16;
  alignas(64) static const char zeros[kBlock * kLargestElement] = {};
  alignas(64) char partial[kBlock * kLargestElement];
  const size_t element = SizeOf(options.dtype);
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t block = std::min(kBlock, count - begin);
    const size_t offset = static_cast<size_t>(begin) * element;
    const auto at = [offset](const void* input) {
      return input == nullptr ? zeros
                              : static_cast<const char*>(input) + offset;
    };
    LoadAccumulator(options.dtype, partial, at(inputs[0]), block,
                    options.prescale);
    for (size_t i = 1; i < inputs.size(); ++i) {
      Accumulate(options.dtype, options.op, partial, at(inputs[i]), block,
                 options.prescale);
    }
    char* const to = static_cast<char*>(output) + offset;
    StoreAccumulator(options.dtype, to, partial, block, options.postscale,
                     options.divisor);
    if (copy != nullptr) {
      std::memcpy(static_cast<char*>(copy) + offset, to,
                  static_cast<size_t>(block) * element);
    }
  }
}

// Block by block in the L1 cache, and streamed from there.
void ReduceAndStream(const ReduceOptions& options,
                     const std::vector<const void*>& inputs, int64_t count,
                     char* output, char* copy) {
  constexpr size_t kBlockBytes = 4096;
  constexpr size_t kLine = 64;
  alignas(kLine) char block[kBlockBytes];
  const size_t element = SizeOf(options.dtype);
  const size_t all = static_cast<size_t>(count) * element;
  std::vector<const void*> at(inputs.size());
  // The first block ends at the start of a cache line.
  size_t most = kBlockBytes - reinterpret_cast<uintptr_t>(output) % kLine;
  for (size_t offset = 0; offset < all; most = kBlockBytes) {
    const size_t bytes = std::min(most, all - offset);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto* const input = static_cast<const char*>(inputs[i]);
      at[i] = input == nullptr ? nullptr : input + offset;
    }
    ReduceInputs(options, at, static_cast<int64_t>(bytes / element), block,
                 copy == nullptr ? nullptr : copy + offset);
    StreamBytes(output + offset, block, bytes);
    offset += bytes;
  }
  FenceStreams();
}

}  // namespace

void ReduceInputs(const ReduceOptions& options,
                  const std::vector<const void*>& inputs, int64_t count,
                  void* output, void* copy, Stores stores) {
  if (stores == Stores::kStreaming) {
    return ReduceAndStream(options, inputs, count, static_cast<char*>(output),
                           static_cast<char*>(copy));
  }
  const FusedScales scales = {options.prescale, options.postscale,
                              options.divisor};
  const FusedLoop loop =
      FusedLoopOf(options.dtype, options.op, ScaledBy(scales));
  const bool some_null =
      std::find(inputs.begin(), inputs.end(), nullptr) != inputs.end();
  if (loop == nullptr || some_null) {
    return ReduceInBlocks(options, inputs, count, output, copy);
  }
  const StandardFloatEnvironment environment;
  loop(inputs.data(), inputs.size(), count, scales, output, copy);
}

}  // namespace tf_hvd
