#include "base/types.h"

#include <gtest/gtest.h>

namespace tf_hvd {
namespace {

TEST(Types, TableOfElementTypes) {
  struct Row {
    DType dtype;
    int number;  // on the wire and in op attributes: never changes
    const char* name;
    size_t size;
    bool floating;
    bool complex = false;
  };
  const Row rows[] = {
      {DType::kUint8, 0, "uint8", 1, false},
      {DType::kInt8, 1, "int8", 1, false},
      {DType::kUint16, 2, "uint16", 2, false},
      {DType::kInt16, 3, "int16", 2, false},
      {DType::kInt32, 4, "int32", 4, false},
      {DType::kInt64, 5, "int64", 8, false},
      {DType::kFloat16, 6, "float16", 2, true},
      {DType::kFloat32, 7, "float32", 4, true},
      {DType::kFloat64, 8, "float64", 8, true},
      {DType::kBool, 9, "bool", 1, false},
      {DType::kBfloat16, 10, "bfloat16", 2, true},
      {DType::kUint32, 11, "uint32", 4, false},
      {DType::kUint64, 12, "uint64", 8, false},
      {DType::kComplex64, 13, "complex64", 8, false, true},
      {DType::kComplex128, 14, "complex128", 16, false, true},
  };
  EXPECT_EQ(std::size(rows), static_cast<size_t>(kDTypeCount));
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(static_cast<int>(row.dtype), row.number);
    EXPECT_STREQ(NameOf(row.dtype), row.name);
    EXPECT_EQ(SizeOf(row.dtype), row.size);
    EXPECT_EQ(IsFloating(row.dtype), row.floating);
    EXPECT_EQ(IsComplex(row.dtype), row.complex);
  }
}

TEST(Types, NumbersAndNamesOfReduceOps) {
  const char* names[] = {"Average", "Sum", "Adasum", "Min", "Max", "Product"};
  EXPECT_EQ(std::size(names), static_cast<size_t>(kReduceOpCount));
  for (int i = 0; i < kReduceOpCount; ++i) {
    EXPECT_STREQ(NameOf(static_cast<ReduceOp>(i)), names[i]);
  }
  EXPECT_EQ(static_cast<int>(ReduceOp::kProduct), 5);
}

TEST(Types, NamesOfOperationsAndDevices) {
  const char* names[] = {
      "allreduce",    "allgather",       "broadcast",          "join",
      "barrier",      "add_process_set", "remove_process_set", "alltoall",
      "reducescatter"};
  EXPECT_EQ(std::size(names), static_cast<size_t>(kOpKindCount));
  for (int i = 0; i < kOpKindCount; ++i) {
    EXPECT_STREQ(NameOf(static_cast<OpKind>(i)), names[i]);
  }
  EXPECT_STREQ(NameOf(DeviceKind::kCpu), "CPU");
  EXPECT_STREQ(NameOf(DeviceKind::kGpu), "GPU");
}

TEST(Types, KindsThatMoveTensorsAndTheirOps) {
  using Ops = std::vector<std::string>;
  EXPECT_EQ(TensorKinds(),
            (std::vector<OpKind>{OpKind::kAllreduce, OpKind::kAllgather,
                                 OpKind::kBroadcast, OpKind::kAlltoall,
                                 OpKind::kReducescatter}));
  EXPECT_EQ(OpsOf(OpKind::kAllreduce),
            (Ops{"HorovodAllreduce", "HorovodGroupedAllreduce"}));
  EXPECT_EQ(OpsOf(OpKind::kAlltoall), Ops{"HorovodAlltoall"});
}

// A number received from another rank may be any.
TEST(Types, UnknownValuesAreHarmless) {
  EXPECT_STREQ(NameOf(static_cast<DType>(15)), "?");
  EXPECT_EQ(SizeOf(static_cast<DType>(255)), 0u);
  EXPECT_FALSE(IsFloating(static_cast<DType>(200)));
  EXPECT_FALSE(IsComplex(static_cast<DType>(200)));
  EXPECT_STREQ(NameOf(static_cast<ReduceOp>(6)), "?");
  EXPECT_STREQ(NameOf(static_cast<OpKind>(kOpKindCount)), "?");
  EXPECT_EQ(YieldOf(static_cast<OpKind>(255)), Yield::kNothing);
  EXPECT_FALSE(Reduces(static_cast<OpKind>(255)));
}

TEST(Types, Describe) {
  EXPECT_EQ(Describe(DType::kFloat32, {3, 4}), "float32[3,4]");
  EXPECT_EQ(Describe(DType::kBool, {}), "bool[]");
  EXPECT_EQ(Describe(DType::kInt64, {-1, 0}), "int64[?,0]");
}

TEST(Types, ElementCount) {
  EXPECT_EQ(ElementCount({}), 1);
  EXPECT_EQ(ElementCount({2, 3, 4}), 24);
  EXPECT_EQ(ElementCount({5, 0, 7}), 0);
  EXPECT_EQ(ElementCount({1 << 20, 1 << 20}), int64_t{1} << 40);
}

}  // namespace
}  // namespace tf_hvd
