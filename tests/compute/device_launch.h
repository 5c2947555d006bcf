// Launches of the kernels of device_moves.h on the host, with every byte of
// memory checked, and the results of buffer_ops for the same elements.
#ifndef TF_HVD_TESTS_COMPUTE_DEVICE_LAUNCH_H_
#define TF_HVD_TESTS_COMPUTE_DEVICE_LAUNCH_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "compute/buffer_ops.h"
#include "compute/device_moves.h"
#include "compute/half_float.h"
#include "tests/gpu/software_kernels.h"

namespace tf_hvd {

// A kernel's task, from its name.
struct Meaning {
  bool copies;
  DType from;
  DType to;
  bool compresses = false;  // scales only in the half precision
};

inline DType DTypeCalled(const std::string& name) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (name == NameOf(static_cast<DType>(i))) return static_cast<DType>(i);
  }
  ADD_FAILURE() << "unknown type " << name;
  return DType::kUint8;
}

inline Meaning MeaningOf(const SoftwareKernel& kernel) {
  const std::string name = std::string(kernel.name).substr(7);  // "tf_hvd_"
  const size_t first = name.find('_');
  const std::string verb = name.substr(0, first);
  const std::string rest = name.substr(first + 1);
  if (verb == "copy") {
    EXPECT_EQ(rest, std::to_string(kernel.input_bytes));
    EXPECT_EQ(kernel.input_bytes, kernel.output_bytes);
    return {true, DType::kUint8, DType::kUint8};
  }
  if (verb == "scale") return {false, DTypeCalled(rest), DTypeCalled(rest)};
  if (verb == "narrow") {
    return {false, DType::kFloat32, DTypeCalled(rest), true};
  }
  if (verb == "widen") {
    return {false, DTypeCalled(rest), DType::kFloat32, true};
  }
  EXPECT_EQ(verb, "cast");
  const size_t second = rest.find('_');
  return {false, DTypeCalled(rest.substr(0, second)),
          DTypeCalled(rest.substr(second + 1))};
}

struct Factors {
  double factor;
  double divisor;
};

// Casts also run without a factor. A factor of 1 by itself does not require a
// kernel that scales: see Scaling::needed.
inline std::vector<Factors> FactorsFor(const Meaning& meaning) {
  if (meaning.copies || meaning.from == DType::kBool) return {{1, 1}};
  std::vector<Factors> all = {{0.1, 1}, {-3, 1}, {0x1p-20, 1}, {1e30, 1}};
  if (meaning.from != meaning.to) all.push_back({1, 1});
  for (const double factor : {1.0, -1.0, 5.0, 1e30}) {
    all.push_back({factor, 7});
  }
  return all;
}

// A product never is a signalling NaN.
inline void QuietNans(std::string* floats) {
  for (size_t at = 0; at < floats->size(); at += sizeof(float)) {
    float value;
    std::memcpy(&value, &(*floats)[at], sizeof(value));
    if (value == value) continue;
    value = FloatOfBits(BitsOfFloat(value) | 0x00400000u);
    std::memcpy(&(*floats)[at], &value, sizeof(value));
  }
}

// A cast followed by scaling.
inline std::string Compressed(const Meaning& meaning, const char* input,
                              int64_t count, const Factors& factors) {
  const auto size = static_cast<size_t>(count);
  const bool narrows = meaning.from == DType::kFloat32;
  const DType half = narrows ? meaning.to : meaning.from;
  std::string halves(2 * size, '\0');
  std::string floats(4 * size, '\0');
  if (narrows) {
    StoreAccumulator(half, &halves[0], input, count, 1.0);
  } else {
    halves.assign(input, halves.size());
  }
  LoadAccumulator(half, &floats[0], halves.data(), count, 1.0);
  if (factors.factor != 1.0 || factors.divisor != 1.0) {
    StoreAccumulator(half, &halves[0], floats.data(), count, factors.factor,
                     factors.divisor);
    LoadAccumulator(half, &floats[0], halves.data(), count, 1.0);
  }
  return narrows ? halves : floats;
}

// `count` elements as converted and scaled by buffer_ops; a null input stands
// for zeros.
inline std::string Reference(const SoftwareKernel& kernel, const char* input,
                             int64_t count, const Factors& factors) {
  const Meaning meaning = MeaningOf(kernel);
  std::string result(static_cast<size_t>(count) * kernel.output_bytes, '\0');
  if (input == nullptr) return result;
  if (meaning.copies) {
    std::memcpy(&result[0], input, result.size());
    return result;
  }
  if (meaning.compresses) return Compressed(meaning, input, count, factors);
  if (meaning.to == AccumulatorOf(meaning.from) && meaning.to != meaning.from) {
    LoadAccumulator(meaning.from, &result[0], input, count, 1.0);
    StoreAccumulator(meaning.to, &result[0], result.data(), count,
                     factors.factor, factors.divisor);
    const bool scaled = factors.factor != 1.0 || factors.divisor != 1.0;
    if (scaled) QuietNans(&result);
    return result;
  }
  // A cast to a half precision starts from its accumulation type.
  std::string values(input, static_cast<size_t>(count) * kernel.input_bytes);
  if (meaning.from == meaning.to) {
    values.resize(static_cast<size_t>(count) *
                  SizeOf(AccumulatorOf(meaning.from)));
    LoadAccumulator(meaning.from, &values[0], input, count, 1.0);
  }
  StoreAccumulator(meaning.to, &result[0], values.data(), count, factors.factor,
                   factors.divisor);
  return result;
}

template <typename T>
void Append(std::vector<std::string>* values, std::initializer_list<T> list) {
  for (const T value : list) {
    values->emplace_back(reinterpret_cast<const char*>(&value), sizeof(T));
  }
}

template <typename T>
void AppendFloats(std::vector<std::string>* values) {
  using Limits = std::numeric_limits<T>;
  Append<T>(values,
            {0, -T{0}, 1, -1, Limits::max(), Limits::lowest(), Limits::min(),
             Limits::denorm_min(), -Limits::denorm_min(), Limits::infinity(),
             -Limits::infinity(), Limits::quiet_NaN(), -Limits::quiet_NaN(),
             T{65504}, T{65520}, T{0x1p-24}, T{0x1p-25}, T{3.3895e38f}});
}

// Edge cases, as bytes of the type.
inline std::vector<std::string> SpecialValues(const Meaning& meaning) {
  std::vector<std::string> values;
  if (meaning.copies) return values;
  switch (meaning.from) {
    case DType::kFloat16:
    case DType::kBfloat16:
      // Zero, the smallest and the largest denormal, numbers, infinity and NaN
      // of float16, then of bfloat16; each also negated.
      for (const int bits : {0, 1, 0x3ff, 0x400, 0x3c00, 0x7bff, 0x7c00, 0x7e01,
                             0x7f, 0x80, 0x3f80, 0x7f7f, 0x7f80, 0x7fc1}) {
        Append<uint16_t>(&values, {static_cast<uint16_t>(bits),
                                   static_cast<uint16_t>(bits | 0x8000)});
      }
      return values;
    case DType::kFloat32:
      AppendFloats<float>(&values);
      return values;
    case DType::kFloat64:
      AppendFloats<double>(&values);
      return values;
    default:
      break;
  }
  // For integers: the ends of the range and their neighbours.
  const size_t bytes = SizeOf(meaning.from);
  for (const uint64_t value : {uint64_t{0}, uint64_t{1}, uint64_t{2},
                               ~uint64_t{0}, ~uint64_t{0} - 1}) {
    const uint64_t top = uint64_t{1} << (8 * bytes - 1);
    for (const uint64_t number : {value, value ^ top}) {
      values.emplace_back(reinterpret_cast<const char*>(&number), bytes);
    }
  }
  return values;
}

struct Row {
  int64_t count;
  int in_offset = 0;  // elements after an address to which all are aligned
  int out_offset = 0;
  bool zeros = false;
};

// Memory that begins at a multiple of 64.
class AlignedBytes {
 public:
  AlignedBytes(size_t bytes, char fill) : memory_(bytes + 64, fill) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    begin_ = memory_.data() + (64 - address % 64) % 64;
    bytes_ = bytes;
  }
  char* data() { return begin_; }
  std::string text() const { return std::string(begin_, bytes_); }
  void Fill(const std::string& text) {
    std::memcpy(begin_, text.data(), text.size());
  }

 private:
  std::vector<char> memory_;
  char* begin_;
  size_t bytes_;
};

// One launch: rows with guards between them, placed in different orders in the
// memory of inputs and of outputs.
class Launch {
 public:
  Launch(const SoftwareKernel& kernel, const std::vector<Row>& rows,
         int64_t tile, const Factors& factors, bool in_place = false)
      : kernel_(kernel),
        factors_(factors),
        inputs_(BytesFor(rows, kernel.input_bytes), '\x11'),
        outputs_(in_place ? 0 : BytesFor(rows, kernel.output_bytes), '\x22') {
    std::vector<size_t> order(rows.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random_);
    rows_.resize(rows.size());
    char* in = inputs_.data() + 64;
    char* out = outputs_.data() + 64;
    for (const size_t i : order) {
      rows_[i].input =
          Place(rows[i], rows[i].in_offset, kernel.input_bytes, &in);
      rows_[i].output = in_place ? const_cast<void*>(rows_[i].input)
                                 : Place(rows[i], rows[i].out_offset,
                                         kernel.output_bytes, &out);
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      arguments_.total += rows[i].count;
      rows_[i].end = arguments_.total;
      counts_.push_back(rows[i].count);
      Draw(static_cast<char*>(const_cast<void*>(rows_[i].input)),
           rows[i].count);
      if (rows[i].zeros) rows_[i].input = nullptr;
    }
    arguments_.rows = rows_.data();
    arguments_.row_count = static_cast<int64_t>(rows_.size());
    arguments_.tile = tile;
    arguments_.factor = factors.factor;
    arguments_.divisor = factors.divisor;
  }

  const MoveArguments& arguments() const { return arguments_; }
  int64_t tiles() const {
    return (arguments_.total + arguments_.tile - 1) / arguments_.tile;
  }
  AlignedBytes* outputs() { return &outputs_; }

  void Run(int threads) {
    for (int64_t tile = 0; tile < tiles(); ++tile) {
      for (int thread = 0; thread < threads; ++thread) {
        kernel_.tile(arguments_, tile, thread, threads);
      }
    }
  }

  // The expected contents of `memory`, which rows write to.
  std::string Expected(AlignedBytes* memory) {
    std::string expected = memory->text();
    for (size_t i = 0; i < rows_.size(); ++i) {
      const std::string row =
          Reference(kernel_, static_cast<const char*>(rows_[i].input),
                    counts_[i], factors_);
      const auto at = static_cast<char*>(rows_[i].output) - memory->data();
      expected.replace(static_cast<size_t>(at), row.size(), row);
    }
    return expected;
  }

  // Runs the launch and checks all memory.
  void Check(int threads) {
    const std::string inputs = inputs_.text();
    const std::string expected = Expected(&outputs_);
    Run(threads);
    EXPECT_TRUE(outputs_.text() == expected) << Difference(expected);
    EXPECT_TRUE(inputs_.text() == inputs);
  }

  void CheckInPlace(int threads) {
    const std::string expected = Expected(&inputs_);
    Run(threads);
    EXPECT_TRUE(inputs_.text() == expected);
  }

 private:
  static size_t BytesFor(const std::vector<Row>& rows, size_t element) {
    size_t bytes = 64;
    for (const Row& row : rows) {
      bytes += static_cast<size_t>(row.count + 18) * element + 128;
    }
    return bytes;
  }

  // The address of a row; moves `at` to the address after the row.
  static void* Place(const Row& row, int offset, size_t element, char** at) {
    char* const place = *at + static_cast<size_t>(offset) * element;
    const size_t bytes = static_cast<size_t>(row.count + offset) * element;
    *at += (bytes + 127) / 64 * 64;
    return place;
  }

  // Random bits, including special values.
  void Draw(char* input, int64_t count) {
    const auto special = SpecialValues(MeaningOf(kernel_));
    const size_t bytes = kernel_.input_bytes;
    for (int64_t i = 0; i < count; ++i, input += bytes) {
      const uint64_t any = random_();
      std::memcpy(input, &any, bytes);
      if (special.empty() || random_() % 4 != 0) continue;
      std::memcpy(input, special[random_() % special.size()].data(), bytes);
    }
  }

  std::string Difference(const std::string& expected) const {
    const std::string got = outputs_.text();
    const auto at = std::mismatch(got.begin(), got.end(), expected.begin());
    return "first at byte " + std::to_string(at.first - got.begin());
  }

  std::mt19937_64 random_{7};
  const SoftwareKernel kernel_;
  const Factors factors_;
  AlignedBytes inputs_;
  AlignedBytes outputs_;
  std::vector<MoveRow> rows_;
  std::vector<int64_t> counts_;
  MoveArguments arguments_{};
};

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_COMPUTE_DEVICE_LAUNCH_H_
