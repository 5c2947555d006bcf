#include "runtime/request/mismatch.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/one_tensor.h"

namespace tf_hvd {
namespace {

// Ranks 2 and 5 differ in one property; checks the complete text.
void ExpectText(const Request& a, const Request& b, const char* text) {
  EXPECT_EQ(DescribeMismatch("g", 2, a, 5, b), text);
}

TEST(Mismatch, OfTensors) {
  const Request f34 = OneTensor(DType::kFloat32, {3, 4});
  ExpectText(f34, OneTensor(DType::kInt32, {3, 4}),
             "mismatch in allreduce 'g': rank 2 has float32[3,4], rank 5 has "
             "int32[3,4]; the data types must be the same on all ranks");
  ExpectText(f34, OneTensor(DType::kFloat32, {3, 5}),
             "mismatch in allreduce 'g': rank 2 has float32[3,4], rank 5 has "
             "float32[3,5]; the shapes must be the same on all ranks");
  ExpectText(f34, OneTensor(DType::kFloat32, {12}),
             "mismatch in allreduce 'g': rank 2 has float32[3,4], rank 5 has "
             "float32[12]; the shapes must be the same on all ranks");
  ExpectText(
      OneTensor(DType::kFloat32, {-1, 4}, OpKind::kAllgather),
      OneTensor(DType::kFloat32, {-1, 3}, OpKind::kAllgather),
      "mismatch in allgather 'g': rank 2 has float32[?,4], rank 5 has "
      "float32[?,3]; all dimensions but the first must be the same on all "
      "ranks");
  ExpectText(OneTensor(DType::kInt8, {-1}, OpKind::kAlltoall),
             OneTensor(DType::kInt8, {-1, 3}, OpKind::kAlltoall),
             "mismatch in alltoall 'g': rank 2 has int8[?], rank 5 has "
             "int8[?,3]; all dimensions but the first must be the same on all "
             "ranks");
  ExpectText(OneTensor(DType::kInt8, {4, 3}, OpKind::kReducescatter),
             OneTensor(DType::kInt8, {5, 3}, OpKind::kReducescatter),
             "mismatch in reducescatter 'g': rank 2 has int8[4,3], rank 5 has "
             "int8[5,3]; the shapes must be the same on all ranks");
}

TEST(Mismatch, OfGroups) {
  const Request one = OneTensor(DType::kFloat32, {3, 4});
  Request two = one;
  two.tensors.push_back({DType::kFloat32, {2}});
  ExpectText(two, one,
             "mismatch in allreduce 'g': rank 2 has 2 tensors, rank 5 has 1 "
             "tensor; a group must have the same tensors on all ranks");
  Request other = two;
  other.tensors[1].shape = {3};
  ExpectText(
      two, other,
      "mismatch in allreduce 'g': rank 2 has float32[2] as tensor 1, "
      "rank 5 has float32[3] as tensor 1; the shapes must be the same on "
      "all ranks");
}

Request Group(const std::vector<std::string>& names) {
  Request request;
  for (const std::string& name : names) {
    // Shapes stand for the tensors' lengths: if the order differs, shapes
    // differ too.
    request.tensors.push_back(
        {DType::kFloat32, {static_cast<int64_t>(name.size())}, name});
  }
  return request;
}

TEST(Mismatch, OfMembers) {
  ExpectText(Group({"w0", "kernel", "b"}), Group({"w0", "b", "kernel"}),
             "mismatch in allreduce 'g': rank 2 has 'kernel' as tensor 1, rank "
             "5 has 'b' as tensor 1; a group must have the same tensors in the "
             "same order on all ranks");
  // One is missing: reports where the groups diverge, not that the sizes
  // differ.
  ExpectText(Group({"w0", "w1", "w2"}), Group({"w0", "w2"}),
             "mismatch in allreduce 'g': rank 2 has 'w1' as tensor 1, rank 5 "
             "has 'w2' as tensor 1; a group must have the same tensors in the "
             "same order on all ranks");
  ExpectText(Group({"w0", "w1"}), Group({"w0", "w1", "w2"}),
             "mismatch in allreduce 'g': rank 2 has 2 tensors, rank 5 has 3 "
             "tensors; a group must have the same tensors on all ranks");
  ExpectText(Group({"w0", "w1"}), Group({"w0", ""}),
             "mismatch in allreduce 'g': rank 2 has 'w1' as tensor 1, rank 5 "
             "has tensor 1 without a name; a group must have the same tensors "
             "in the same order on all ranks");
  Request wider = Group({"w0", "w1"});
  wider.tensors[1].shape = {7};
  ExpectText(Group({"w0", "w1"}), wider,
             "mismatch in allreduce 'g': rank 2 has float32[2] as tensor 1 "
             "('w1'), rank 5 has float32[7] as tensor 1 ('w1'); the shapes "
             "must be the same on all ranks");
}

TEST(Mismatch, OfCompiledSteps) {
  Request gather = OneTensor(DType::kFloat32, {-1, 3}, OpKind::kAllgather);
  Request compiled = OneTensor(DType::kFloat32, {2, 3}, OpKind::kAllgather);
  compiled.compiled = true;
  ExpectText(compiled, gather,
             "mismatch in allgather 'g': rank 2 has a step that XLA compiles, "
             "rank 5 has a step that XLA does not compile; jit_compile must be "
             "the same on all ranks");
  Request more = compiled;
  more.tensors[0].shape[0] = 4;
  ExpectText(
      compiled, more,
      "mismatch in allgather 'g': rank 2 has float32[2,3], rank 5 has "
      "float32[4,3]; in a compiled step all dimensions must be the same on "
      "all ranks; if the first may differ, make this call outside of "
      "the compiled step (jit_compile=False)");
}

// Compression on one rank makes the data types differ as well.
TEST(Mismatch, OfCompression) {
  const Request plain = OneTensor(DType::kFloat32, {3});
  Request smaller = OneTensor(DType::kFloat16, {3});
  smaller.compression = "fp16 of float32";
  ExpectText(
      smaller, plain,
      "mismatch in allreduce 'g': rank 2 has fp16 of float32, rank 5 "
      "has no compression; the compression must be the same on all ranks");
  Request other = OneTensor(DType::kBfloat16, {3});
  other.compression = "bf16 of float32";
  ExpectText(smaller, other,
             "mismatch in allreduce 'g': rank 2 has fp16 of float32, rank 5 "
             "has bf16 of float32; the compression must be the same on all "
             "ranks");
  // Averages of integers are sent as int64, whatever the caller's type.
  Request small = OneTensor(DType::kInt64, {3});
  small.compression = "uint8 averaged as int64";
  small.reduce_op = ReduceOp::kAverage;
  ExpectText(small, plain,
             "mismatch in allreduce 'g': rank 2 has uint8, rank 5 has float32; "
             "the data types must be the same on all ranks");
  Request larger = small;
  larger.compression = "int16 averaged as int64";
  ExpectText(small, larger,
             "mismatch in allreduce 'g': rank 2 has uint8, rank 5 has int16; "
             "the data types must be the same on all ranks");
  ExpectText(small, OneTensor(DType::kInt64, {3}),
             "mismatch in allreduce 'g': rank 2 has uint8, rank 5 has int64; "
             "the data types must be the same on all ranks");
  ExpectText(small, smaller,
             "mismatch in allreduce 'g': rank 2 has uint8, rank 5 has fp16 of "
             "float32; the data types must be the same on all ranks");
  ExpectText(small, OneTensor(DType::kUint8, {3}),
             "mismatch in allreduce 'g': rank 2 has Average, rank 5 has Sum; "
             "the reduce operations must be the same on all ranks");
  // IndexedSlices announce themselves in their first request; its data does not
  // matter.
  Request slices = OneTensor(DType::kInt64, {1});
  slices.compression = "IndexedSlices";
  ExpectText(smaller, slices,
             "mismatch in allreduce 'g': rank 2 has a dense tensor, rank 5 has "
             "IndexedSlices; it must be dense on all ranks or IndexedSlices on "
             "all ranks: convert it with tf.convert_to_tensor, or pass "
             "sparse_as_dense=True");
}

TEST(Mismatch, OfOperations) {
  const Request sum = OneTensor(DType::kFloat32, {3, 4});
  ExpectText(
      sum, OneTensor(DType::kFloat32, {3, 4}, OpKind::kBroadcast),
      "mismatch in 'g': rank 2 has allreduce, rank 5 has broadcast; "
      "the operations must be the same on all ranks; give different calls "
      "different names");
  Request scaled = sum;
  scaled.prescale = 0.5;
  ExpectText(sum, scaled,
             "mismatch in allreduce 'g': rank 2 has prescale 1 and postscale "
             "1, rank 5 has prescale 0.5 and postscale 1; the scales must be "
             "the same on all ranks");
  Request maximum = sum;
  maximum.reduce_op = ReduceOp::kMax;
  ExpectText(sum, maximum,
             "mismatch in allreduce 'g': rank 2 has Sum, rank 5 has Max; the "
             "reduce operations must be the same on all ranks");
  Request from0 = OneTensor(DType::kFloat32, {1}, OpKind::kBroadcast);
  Request from1 = from0;
  from0.root = 0;
  from1.root = 1;
  ExpectText(from0, from1,
             "mismatch in broadcast 'g': rank 2 has root rank 0, rank 5 has "
             "root rank 1; the root must be the same on all ranks");
  Request on_gpu = sum;
  on_gpu.device = DeviceKind::kGpu;
  ExpectText(sum, on_gpu,
             "mismatch in allreduce 'g': rank 2 has a tensor on CPU, rank 5 "
             "has a tensor on GPU; the kind of device must be the same on all "
             "ranks: put it on one kind, with tf.device(...)");
}

TEST(Mismatch, OfProcessSets) {
  Request set12;
  set12.kind = OpKind::kAddSet;
  set12.ranks = {1, 2};
  Request set13 = set12;
  set13.ranks = {1, 3};
  ExpectText(set12, set13,
             "mismatch in add_process_set 'g': rank 2 has ranks 1, 2, rank 5 "
             "has ranks 1, 3; process sets must be the same on all ranks");
  Request remove1;
  remove1.kind = OpKind::kRemoveSet;
  remove1.removed_set = 1;
  Request remove2 = remove1;
  remove2.removed_set = 2;
  ExpectText(remove1, remove2,
             "mismatch in remove_process_set 'g': rank 2 has process set 1, "
             "rank 5 has process set 2; process sets must be the same on all "
             "ranks");
}

// If several properties differ, the first in the documented order is reported.
TEST(Mismatch, Order) {
  Request a = OneTensor(DType::kFloat32, {3}, OpKind::kBroadcast);
  Request b = OneTensor(DType::kInt32, {4}, OpKind::kAllreduce);
  a.tensors.push_back({DType::kInt8, {1}});
  b.compression = "fp16 of float32";
  b.tensors[0].name = "w";
  b.prescale = 2;
  b.reduce_op = ReduceOp::kMin;
  b.root = 3;
  b.device = DeviceKind::kGpu;
  const auto text = [&] { return DescribeMismatch("g", 0, a, 1, b); };
  const auto expect = [&](const char* rule) {
    EXPECT_NE(text().find(rule), std::string::npos) << text();
  };
  b.compiled = true;
  expect("the operations must");
  b.kind = a.kind;
  expect("jit_compile must");
  b.compiled = false;
  expect("the compression must");
  b.compression = "";
  expect("a group must have the same tensors in the same order");
  b.tensors[0].name = "";
  expect("the data types must");
  b.tensors[0].dtype = DType::kFloat32;
  expect("a group must");
  b.tensors.push_back({DType::kInt8, {1}});
  expect("the shapes must");
  b.tensors[0].shape = {3};
  expect("the scales must");
  b.prescale = 1;
  expect("the reduce operations must");
  b.reduce_op = ReduceOp::kSum;
  expect("the root must");
  b.root = a.root;
  expect("the kind of device must");
}

TEST(Mismatch, DataTypeComesBeforeTheNumberOfTensors) {
  Request a = OneTensor(DType::kFloat32, {3});
  Request b = OneTensor(DType::kInt32, {3});
  b.tensors.push_back({DType::kInt32, {3}});
  EXPECT_EQ(
      DescribeMismatch("g", 0, a, 1, b),
      "mismatch in allreduce 'g': rank 0 has float32[3] as tensor 0, rank "
      "1 has int32[3] as tensor 0; the data types must be the same on all "
      "ranks");
}

}  // namespace
}  // namespace tf_hvd
