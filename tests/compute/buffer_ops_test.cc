#include "compute/buffer_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "compute/half_float.h"
#include "tests/compute/flushed_denormals.h"

namespace tf_hvd {
namespace {

// The reference: one element at a time, with conversions by the definition of
// the formats, using std::ldexp and std::nearbyint.

struct Format {
  int mantissa_bits;
  int exponent_bits;
};
constexpr Format kHalf = {10, 5};
constexpr Format kBfloat = {7, 8};

double Decode(Format format, uint16_t bits) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int exponent =
      (bits >> format.mantissa_bits) & ((1 << format.exponent_bits) - 1);
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << format.exponent_bits) - 1) {
    return mantissa != 0 ? std::nan("") : sign * HUGE_VAL;
  }
  const int hidden = exponent == 0 ? 0 : 1 << format.mantissa_bits;
  const int shift = (exponent == 0 ? 1 : exponent) - bias;
  return sign * std::ldexp(hidden + mantissa, shift - format.mantissa_bits);
}

// `value` must not be NaN.
uint16_t Encode(Format format, double value) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  const uint16_t infinity = ((1 << format.exponent_bits) - 1)
                            << format.mantissa_bits;
  if (std::isinf(magnitude)) return sign | infinity;
  int exponent = magnitude == 0 ? 1 - bias : std::ilogb(magnitude);
  if (exponent < 1 - bias) exponent = 1 - bias;
  // In units of the last place; nearbyint rounds to even.
  const double units =
      std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  // With the hidden bit included, a carry moves the exponent.
  const uint32_t bits =
      (static_cast<uint32_t>(exponent + bias - 1) << format.mantissa_bits) +
      static_cast<uint32_t>(units);
  return sign | static_cast<uint16_t>(bits < infinity ? bits : infinity);
}

bool IsNan(Format format, uint16_t bits) {
  return std::isnan(Decode(format, bits));
}

void CheckAllToFloat(Format format, float (*convert)(uint16_t)) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float got = convert(half);
    if (IsNan(format, half)) {
      ASSERT_TRUE(std::isnan(got)) << bits;
    } else {
      ASSERT_EQ(BitsOfFloat(got),
                BitsOfFloat(static_cast<float>(Decode(format, half))))
          << bits;
    }
  }
}

// Every value of the format, the midpoint to the next value, and the floats
// adjacent to each of these.
void CheckAllFromFloat(Format format, uint16_t (*convert)(float)) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    if (IsNan(format, half)) {
      const auto nan = convert(static_cast<float>(Decode(format, half)));
      ASSERT_TRUE(IsNan(format, nan)) << bits;
      continue;
    }
    const auto value = static_cast<float>(Decode(format, half));
    const double next = Decode(format, static_cast<uint16_t>(half + 1));
    std::vector<float> samples = {value};
    if (std::isfinite(value) && std::isfinite(next)) {
      samples.push_back(static_cast<float>(0.5 * value + 0.5 * next));
    }
    for (const float middle : std::vector<float>(samples)) {
      samples.push_back(std::nextafter(middle, HUGE_VALF));
      samples.push_back(std::nextafter(middle, -HUGE_VALF));
    }
    for (const float sample : samples) {
      ASSERT_EQ(convert(sample), Encode(format, sample)) << sample;
    }
  }
}

TEST(HalfFloat, AllHalvesToFloat) { CheckAllToFloat(kHalf, HalfToFloat); }
TEST(HalfFloat, AllBfloatsToFloat) { CheckAllToFloat(kBfloat, BfloatToFloat); }
TEST(HalfFloat, RoundsToNearestHalf) { CheckAllFromFloat(kHalf, FloatToHalf); }
TEST(HalfFloat, RoundsToNearestBfloat) {
  CheckAllFromFloat(kBfloat, FloatToBfloat);
}

TEST(HalfFloat, HalfOverflowsAtTheMiddle) {
  EXPECT_EQ(FloatToHalf(65519.996f), 0x7bff);  // the largest finite one
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToHalf(-1e30f), 0xfc00);
}

TEST(HalfFloat, NansStayNansForAllBits) {
  for (uint32_t low = 1; low < 0x800000; low = low * 2 + 1) {
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const float nan = FloatOfBits(sign | 0x7f800000u | low);
      EXPECT_TRUE(IsNan(kHalf, FloatToHalf(nan))) << low;
      EXPECT_TRUE(IsNan(kBfloat, FloatToBfloat(nan))) << low;
    }
  }
}

template <typename T>
T At(const std::vector<char>& memory, int64_t i) {
  T value;
  std::memcpy(&value, memory.data() + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void Put(std::vector<char>* memory, int64_t i, T value) {
  std::memcpy(memory->data() + i * sizeof(T), &value, sizeof(T));
}

template <typename T>
T ReferenceScale(T value, double scale) {
  if (scale == 1.0) return value;
  if (std::is_floating_point_v<T>) return value * static_cast<T>(scale);
  const double product = static_cast<double>(value) * scale;
  if (std::isnan(product)) return T{0};
  const long double exact = std::trunc(product);
  if (exact > std::numeric_limits<T>::max()) {
    return std::numeric_limits<T>::max();
  }
  if (exact < std::numeric_limits<T>::lowest()) {
    return std::numeric_limits<T>::lowest();
  }
  return static_cast<T>(exact);
}

template <typename T>
std::complex<T> ReferenceScale(std::complex<T> value, double scale) {
  return {ReferenceScale(value.real(), scale),
          ReferenceScale(value.imag(), scale)};
}

template <typename T>
T ReferenceReduce(ReduceOp op, T a, T b) {
  const bool nan = a != a || b != b;
  switch (op) {
    case ReduceOp::kMin:
      return nan ? static_cast<T>(a + b) : std::min(a, b);
    case ReduceOp::kMax:
      return nan ? static_cast<T>(a + b) : std::max(a, b);
    default:
      break;
  }
  const bool product = op == ReduceOp::kProduct;
  if constexpr (std::is_floating_point_v<T>) {
    return product ? a * b : a + b;
  } else {
    using Wide = unsigned __int128;
    const Wide wide = product ? static_cast<Wide>(a) * static_cast<Wide>(b)
                              : static_cast<Wide>(a) + static_cast<Wide>(b);
    return static_cast<T>(wide);
  }
}

template <typename T>
std::complex<T> ReferenceReduce(ReduceOp op, std::complex<T> a,
                                std::complex<T> b) {
  if (op != ReduceOp::kProduct) {
    return {a.real() + b.real(), a.imag() + b.imag()};
  }
  const T ac = a.real() * b.real();
  const T bd = a.imag() * b.imag();
  const T ad = a.real() * b.imag();
  const T bc = a.imag() * b.real();
  return {ac - bd, ad + bc};
}

// The same bits, or both NaN.
template <typename T>
bool Same(T a, T b) {
  return (a != a && b != b) || std::memcmp(&a, &b, sizeof(T)) == 0;
}

template <typename T>
bool Same(std::complex<T> a, std::complex<T> b) {
  return Same(a.real(), b.real()) && Same(a.imag(), b.imag());
}

// Conversion of a stored type to and from `Value` in the reference.
template <typename S, typename V>
struct Model {
  using Stored = S;
  using Value = V;
  V (*load)(S);
  S (*store)(V);
};

template <typename M>
void CheckReduce(DType dtype, const M& model, ReduceOp op, double prescale,
                 double postscale) {
  using Stored = typename M::Stored;
  using Value = typename M::Value;
  constexpr int64_t kCount = 1003;  // not a multiple of any vector
  std::mt19937_64 random(static_cast<uint64_t>(dtype) * 16 +
                         static_cast<uint64_t>(op));
  std::vector<std::vector<char>> inputs(3);
  for (auto& input : inputs) {
    input.resize(kCount * sizeof(Stored));
    for (char& byte : input) byte = static_cast<char>(random());
  }
  std::vector<char> accumulator(kCount * SizeOf(AccumulatorOf(dtype)));
  std::vector<char> output(kCount * sizeof(Stored));
  LoadAccumulator(dtype, accumulator.data(), inputs[0].data(), kCount,
                  prescale);
  Accumulate(dtype, op, accumulator.data(), inputs[1].data(), kCount, prescale);
  Accumulate(dtype, op, accumulator.data(), inputs[2].data(), kCount, prescale);
  StoreAccumulator(dtype, output.data(), accumulator.data(), kCount, postscale);
  for (int64_t i = 0; i < kCount; ++i) {
    Value value =
        ReferenceScale(model.load(At<Stored>(inputs[0], i)), prescale);
    for (const int rank : {1, 2}) {
      value = ReferenceReduce(
          op, value,
          ReferenceScale(model.load(At<Stored>(inputs[rank], i)), prescale));
    }
    const Stored expected = model.store(ReferenceScale(value, postscale));
    const Stored got = At<Stored>(output, i);
    const Value expected_value = model.load(expected);
    const Value got_value = model.load(got);
    const bool compares = op == ReduceOp::kMin || op == ReduceOp::kMax;
    if (compares && got_value == expected_value) continue;  // either zero
    ASSERT_TRUE(Same(got_value, expected_value)) << i;
  }
}

template <typename M>
void CheckNumbers(DType dtype, const M& model,
                  const std::vector<ReduceOp>& ops = {
                      ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin,
                      ReduceOp::kMax, ReduceOp::kProduct}) {
  for (const ReduceOp op : ops) {
    ASSERT_TRUE(IsReducible(dtype, op));
    for (const double prescale : {1.0, 0.3, -2.5}) {
      for (const double postscale : {1.0, 1.0 / 3.0}) {
        SCOPED_TRACE(std::string(NameOf(dtype)) + " " + NameOf(op) + " " +
                     std::to_string(prescale) + " " +
                     std::to_string(postscale));
        CheckReduce(dtype, model, op, prescale, postscale);
      }
    }
  }
}

template <typename T>
Model<T, T> Plain() {
  return {[](T value) { return value; }, [](T value) { return value; }};
}

Model<uint16_t, float> HalfModel() {
  return {[](uint16_t bits) { return static_cast<float>(Decode(kHalf, bits)); },
          [](float value) {
            return std::isnan(value) ? uint16_t{0x7e00} : Encode(kHalf, value);
          }};
}

Model<uint16_t, float> BfloatModel() {
  return {
      [](uint16_t bits) { return static_cast<float>(Decode(kBfloat, bits)); },
      [](float value) {
        return std::isnan(value) ? uint16_t{0x7fc0} : Encode(kBfloat, value);
      }};
}

TEST(BufferOps, Uint8) { CheckNumbers(DType::kUint8, Plain<uint8_t>()); }
TEST(BufferOps, Int8) { CheckNumbers(DType::kInt8, Plain<int8_t>()); }
TEST(BufferOps, Uint16) { CheckNumbers(DType::kUint16, Plain<uint16_t>()); }
TEST(BufferOps, Int16) { CheckNumbers(DType::kInt16, Plain<int16_t>()); }
TEST(BufferOps, Int32) { CheckNumbers(DType::kInt32, Plain<int32_t>()); }
TEST(BufferOps, Int64) { CheckNumbers(DType::kInt64, Plain<int64_t>()); }
TEST(BufferOps, Float16) { CheckNumbers(DType::kFloat16, HalfModel()); }
TEST(BufferOps, Bfloat16) { CheckNumbers(DType::kBfloat16, BfloatModel()); }
TEST(BufferOps, Float32) { CheckNumbers(DType::kFloat32, Plain<float>()); }
TEST(BufferOps, Float64) { CheckNumbers(DType::kFloat64, Plain<double>()); }

TEST(BufferOps, Uint32) { CheckNumbers(DType::kUint32, Plain<uint32_t>()); }
TEST(BufferOps, Uint64) { CheckNumbers(DType::kUint64, Plain<uint64_t>()); }

const std::vector<ReduceOp> kUnordered = {ReduceOp::kAverage, ReduceOp::kSum,
                                          ReduceOp::kProduct};

TEST(BufferOps, Complex64) {
  CheckNumbers(DType::kComplex64, Plain<std::complex<float>>(), kUnordered);
}

TEST(BufferOps, Complex128) {
  CheckNumbers(DType::kComplex128, Plain<std::complex<double>>(), kUnordered);
}

// As in NumPy; for the last one std::complex would give an infinity.
TEST(BufferOps, ProductsOfInfiniteComplexNumbers) {
  using Complex = std::complex<double>;
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const double nan = std::nan("");
  const std::vector<Complex> a = {
      {kInf, 0}, {kInf, kInf}, {kInf, 0}, {kInf, -kInf}};
  const std::vector<Complex> b = {{1, 1}, {kInf, kInf}, {kInf, 0}, {1, 0}};
  const std::vector<Complex> expected = {
      {kInf, kInf}, {nan, kInf}, {kInf, nan}, {nan, nan}};
  std::vector<Complex> result = a;
  Accumulate(DType::kComplex128, ReduceOp::kProduct, result.data(), b.data(), 4,
             1.0);
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(Same(result[i], expected[i])) << result[i] << " " << i;
  }
}

TEST(BufferOps, BoolIgnoresScales) {
  const std::vector<uint8_t> a = {0, 0, 1, 1, 2, 4};
  const std::vector<uint8_t> b = {0, 1, 0, 1, 1, 0};
  for (const ReduceOp op :
       {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    ASSERT_TRUE(IsReducible(DType::kBool, op));
    const bool is_or = op == ReduceOp::kSum || op == ReduceOp::kMax;
    std::vector<uint8_t> result(a.size());
    LoadAccumulator(DType::kBool, result.data(), a.data(), 6, 0.25);
    Accumulate(DType::kBool, op, result.data(), b.data(), 6, 0.25);
    StoreAccumulator(DType::kBool, result.data(), result.data(), 6, 0.25);
    for (size_t i = 0; i < a.size(); ++i) {
      const bool expected = is_or ? (a[i] || b[i]) : (a[i] && b[i]);
      EXPECT_EQ(result[i], expected ? 1 : 0) << NameOf(op) << " " << i;
    }
  }
}

TEST(BufferOps, UnsupportedOperationsAreNotReducible) {
  EXPECT_FALSE(IsReducible(DType::kBool, ReduceOp::kAverage));
  for (const DType dtype : {DType::kComplex64, DType::kComplex128}) {
    EXPECT_FALSE(IsReducible(dtype, ReduceOp::kMin));
    EXPECT_FALSE(IsReducible(dtype, ReduceOp::kMax));
  }
  for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
    EXPECT_FALSE(IsReducible(static_cast<DType>(dtype), ReduceOp::kAdasum));
  }
  EXPECT_FALSE(IsReducible(static_cast<DType>(kDTypeCount), ReduceOp::kSum));
}

TEST(BufferOps, NullInputGivesZeros) {
  for (int number = 0; number < kDTypeCount; ++number) {
    const auto dtype = static_cast<DType>(number);
    std::vector<char> accumulator(7 * SizeOf(AccumulatorOf(dtype)), 'x');
    LoadAccumulator(dtype, accumulator.data(), nullptr, 7, 3.0);
    EXPECT_EQ(accumulator, std::vector<char>(accumulator.size(), 0));
  }
}

// From any element of a line on, and not one byte beyond the end.
TEST(BufferOps, StreamedResultsAreTheSameBits) {
  constexpr size_t kRoom = 3 * 64;
  std::mt19937_64 random(1);
  for (int number = 0; number < kDTypeCount; ++number) {
    ReduceOptions options;
    options.dtype = static_cast<DType>(number);
    options.postscale = 0.5;
    const size_t element = SizeOf(options.dtype);
    for (const int64_t count : {1, 63, 64, 1003, 5000}) {
      const size_t bytes = static_cast<size_t>(count) * element;
      std::vector<char> first(bytes);
      std::vector<char> second(bytes);
      for (char& byte : first) byte = static_cast<char>(random());
      for (char& byte : second) byte = static_cast<char>(random());
      for (const void* const other :
           {static_cast<void*>(second.data()), static_cast<void*>(nullptr)}) {
        const std::vector<const void*> inputs = {first.data(), other};
        std::vector<char> expected(bytes);
        ReduceInputs(options, inputs, count, expected.data());
        for (const size_t at : {size_t{0}, element, 3 * element}) {
          SCOPED_TRACE(std::string(NameOf(options.dtype)) + " " +
                       std::to_string(count) + " at " + std::to_string(at));
          std::vector<char> output(bytes + kRoom, 'x');
          std::vector<char> wanted = output;
          std::copy(expected.begin(), expected.end(),
                    wanted.begin() + static_cast<ptrdiff_t>(at));
          std::vector<char> copy(bytes);
          ReduceInputs(options, inputs, count, output.data() + at, copy.data(),
                       Stores::kStreaming);
          EXPECT_TRUE(output == wanted);
          EXPECT_TRUE(copy == expected);
        }
      }
    }
  }
}

TEST(BufferOps, ThreadsThatFlushDenormalsGetTheSameBits) {
  std::vector<uint32_t> denormals(64, 5);
  std::vector<uint32_t> sum(64);
  std::vector<uint16_t> halves(64, 3);
  std::vector<float> values(64);
  {
    const FlushedDenormals flushed;
    LoadAccumulator(DType::kFloat32, sum.data(), denormals.data(), 64, 1.0);
    Accumulate(DType::kFloat32, ReduceOp::kSum, sum.data(), denormals.data(),
               64, 1.0);
    LoadAccumulator(DType::kFloat16, values.data(), halves.data(), 64, 1.0);
    EXPECT_TRUE(flushed.flushes());  // the thread's setting is restored
  }
  EXPECT_EQ(sum, std::vector<uint32_t>(64, 10));
  EXPECT_EQ(values, std::vector<float>(64, std::ldexp(3.0f, -24)));
}

}  // namespace
}  // namespace tf_hvd
