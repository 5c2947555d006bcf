#include "base/types.h"

#include <array>

namespace tf_hvd {
namespace {

struct DTypeRow {
  const char* name;
  size_t size;
  bool floating;
};

// In the order of the enumeration.
constexpr std::array<DTypeRow, kDTypeCount> kDTypes = {{
    {"uint8", 1, false},
    {"int8", 1, false},
    {"uint16", 2, false},
    {"int16", 2, false},
    {"int32", 4, false},
    {"int64", 8, false},
    {"float16", 2, true},
    {"float32", 4, true},
    {"float64", 8, true},
    {"bool", 1, false},
    {"bfloat16", 2, true},
    {"uint32", 4, false},
    {"uint64", 8, false},
    {"complex64", 8, false},
    {"complex128", 16, false},
}};

constexpr std::array<const char*, kReduceOpCount> kReduceOps = {
    {"Average", "Sum", "Adasum", "Min", "Max", "Product"}};

template <typename Table, typename Enum>
auto Row(const Table& table, Enum value) -> decltype(&table[0]) {
  const auto index = static_cast<size_t>(value);
  return index < table.size() ? &table[index] : nullptr;
}

}  // namespace

std::vector<OpKind> TensorKinds() {
  std::vector<OpKind> kinds;
  for (int number = 0; number < kOpKindCount; ++number) {
    const auto kind = static_cast<OpKind>(number);
    if (YieldOf(kind) != Yield::kNothing) kinds.push_back(kind);
  }
  return kinds;
}

std::vector<std::string> OpsOf(OpKind kind) {
  std::string name = NameOf(kind);
  name[0] = static_cast<char>(name[0] + 'A' - 'a');
  std::vector<std::string> ops = {"Horovod" + name};
  if (Has(kind, kHasGroups)) ops.push_back("HorovodGrouped" + name);
  return ops;
}

size_t SizeOf(DType dtype) {
  const auto* row = Row(kDTypes, dtype);
  return row != nullptr ? row->size : 0;
}

bool IsFloating(DType dtype) {
  const auto* row = Row(kDTypes, dtype);
  return row != nullptr && row->floating;
}

bool IsComplex(DType dtype) {
  return dtype == DType::kComplex64 || dtype == DType::kComplex128;
}

const char* NameOf(DType dtype) {
  const auto* row = Row(kDTypes, dtype);
  return row != nullptr ? row->name : "?";
}

const char* NameOf(ReduceOp op) {
  const auto* row = Row(kReduceOps, op);
  return row != nullptr ? *row : "?";
}

const char* NameOf(OpKind kind) { return RowOf(kind).name; }

const char* NameOf(DeviceKind kind) {
  return kind == DeviceKind::kCpu ? "CPU" : "GPU";
}

std::string Describe(DType dtype, const std::vector<int64_t>& shape) {
  std::string text = std::string(NameOf(dtype)) + "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ",";
    text += shape[i] < 0 ? "?" : std::to_string(shape[i]);
  }
  return text + "]";
}

int64_t ElementCount(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return count;
}

}  // namespace tf_hvd
