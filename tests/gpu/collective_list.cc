#include "tests/gpu/collective_list.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "compute/buffer_ops.h"
#include "runtime/request/request.h"

namespace tf_hvd {
namespace {

using Values = std::vector<double>;

template <typename T>
std::string AsBytes(const Values& values) {
  std::vector<T> cast;
  for (const double value : values) cast.push_back(static_cast<T>(value));
  return {reinterpret_cast<const char*>(cast.data()), cast.size() * sizeof(T)};
}

// Encodes whole numbers as elements of a type.
std::string Encode(DType dtype, const Values& values) {
  switch (dtype) {
    case DType::kUint8:
      return AsBytes<uint8_t>(values);
    case DType::kInt8:
      return AsBytes<int8_t>(values);
    case DType::kInt16:
      return AsBytes<int16_t>(values);
    case DType::kInt32:
      return AsBytes<int32_t>(values);
    case DType::kUint32:
      return AsBytes<uint32_t>(values);
    case DType::kInt64:
      return AsBytes<int64_t>(values);
    case DType::kUint64:
      return AsBytes<uint64_t>(values);
    case DType::kFloat64:
      return AsBytes<double>(values);
    default:
      break;
  }
  const std::string floats = AsBytes<float>(values);
  std::string bytes(values.size() * SizeOf(dtype), '\0');
  StoreAccumulator(dtype, &bytes[0], floats.data(),
                   static_cast<int64_t>(values.size()), 1.0);
  return bytes;
}

// Element i of a rank's input: 1 to 5.
double Element(int rank, int64_t i) {
  return static_cast<double>((i * 7 + rank * 3) % 5 + 1);
}

Values ElementsOf(int rank, int64_t count, double times = 1) {
  Values values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(times * Element(rank, i));
  }
  return values;
}

// A request in progress and its expected results.
struct Expected {
  Reply reply;
  std::vector<std::pair<const char*, std::string>> outputs;
};

// A collective: its name, and the function by which a rank requests it.
struct Collective {
  std::string name;
  Status (*ask)(const Collective& of, DeviceRank* rank, Expected* expected);
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::vector<int64_t> counts = {1003};
  double prescale = 1;
  double postscale = 1;
  bool in_place = false;
  int root = 0;  // counted from the last rank if negative
};

// Makes a tensor with these values, and memory for `outputs` elements.
Status Lay(DeviceRank* rank, DType dtype, const Values& values, int64_t outputs,
           bool in_place, DeviceTensor* tensor) {
  const std::string bytes = Encode(dtype, values);
  char* input = nullptr;
  TF_HVD_RETURN_IF_ERROR(rank->side()->Allocate(bytes.size(), &input));
  TF_HVD_RETURN_IF_ERROR(
      rank->side()->Produce(input, bytes.data(), bytes.size()));
  tensor->input = tensor->output = input;
  tensor->count = static_cast<int64_t>(values.size());
  if (in_place) return Status::Ok();
  return rank->side()->Allocate(static_cast<size_t>(outputs) * SizeOf(dtype),
                                &tensor->output);
}

double Reduced(ReduceOp op, int ranks, int64_t i) {
  double result = Element(0, i);
  for (int rank = 1; rank < ranks; ++rank) {
    const double next = Element(rank, i);
    if (op == ReduceOp::kProduct) result *= next;
    if (op == ReduceOp::kMin) result = std::min(result, next);
    if (op == ReduceOp::kMax) result = std::max(result, next);
    if (op == ReduceOp::kSum || op == ReduceOp::kAverage) result += next;
  }
  return result;
}

Status Allreduce(const Collective& of, DeviceRank* rank, Expected* expected) {
  std::vector<DeviceTensor> group(of.counts.size());
  // Averages use numbers that are divisible without a remainder.
  const bool averages = of.op == ReduceOp::kAverage;
  const double times = averages ? rank->size() : 1;
  for (size_t i = 0; i < group.size(); ++i) {
    const int64_t count = of.counts[i];
    TF_HVD_RETURN_IF_ERROR(Lay(rank, of.dtype,
                               ElementsOf(rank->rank(), count, times), count,
                               of.in_place, &group[i]));
    Values values;
    for (int64_t j = 0; j < count; ++j) {
      values.push_back(Reduced(of.op, rank->size(), j) * of.prescale *
                       of.postscale);
    }
    expected->outputs.emplace_back(group[i].output, Encode(of.dtype, values));
  }
  expected->reply = rank->Allreduce(of.name, of.dtype, group, of.op,
                                    of.prescale, of.postscale);
  return Status::Ok();
}

// Each rank adds its number to the row count.
Status Allgather(const Collective& of, DeviceRank* rank, Expected* expected) {
  Values all;
  Values mine;
  for (int other = 0; other < rank->size(); ++other) {
    const Values rows = ElementsOf(other, of.counts[0] + other);
    all.insert(all.end(), rows.begin(), rows.end());
    if (other == rank->rank()) mine = rows;
  }
  DeviceTensor tensor;
  TF_HVD_RETURN_IF_ERROR(Lay(rank, of.dtype, mine,
                             static_cast<int64_t>(all.size()), false, &tensor));
  expected->outputs.emplace_back(tensor.output, Encode(of.dtype, all));
  expected->reply = rank->Allgather(of.name, of.dtype, tensor);
  return Status::Ok();
}

Status Broadcast(const Collective& of, DeviceRank* rank, Expected* expected) {
  const int root = (of.root + rank->size()) % rank->size();
  const int64_t count = of.counts[0];
  DeviceTensor tensor;
  TF_HVD_RETURN_IF_ERROR(Lay(rank, of.dtype, ElementsOf(rank->rank(), count),
                             count, of.in_place, &tensor));
  expected->outputs.emplace_back(tensor.output,
                                 Encode(of.dtype, ElementsOf(root, count)));
  expected->reply = rank->Broadcast(of.name, of.dtype, tensor, root);
  return Status::Ok();
}

// Number of rows that `from` sends to `to`; zero for some.
int64_t RowsFor(const Collective& of, int from, int to) {
  return (from + 2 * to) % 3 * of.counts[0];
}

Status Alltoall(const Collective& of, DeviceRank* rank, Expected* expected) {
  std::vector<int64_t> splits;
  Values mine;
  Values received;
  for (int other = 0; other < rank->size(); ++other) {
    const int64_t sent = RowsFor(of, rank->rank(), other);
    const Values to = ElementsOf(rank->rank() + 2 * other, sent);
    const Values from =
        ElementsOf(other + 2 * rank->rank(), RowsFor(of, other, rank->rank()));
    splits.push_back(sent);
    mine.insert(mine.end(), to.begin(), to.end());
    received.insert(received.end(), from.begin(), from.end());
  }
  DeviceTensor tensor;
  TF_HVD_RETURN_IF_ERROR(Lay(rank, of.dtype, mine,
                             static_cast<int64_t>(received.size()), false,
                             &tensor));
  expected->outputs.emplace_back(tensor.output, Encode(of.dtype, received));
  expected->reply =
      rank->Alltoall(of.name, of.dtype, tensor, std::move(splits));
  return Status::Ok();
}

// With a number of rows that the ranks do not divide.
Status Reducescatter(const Collective& of, DeviceRank* rank,
                     Expected* expected) {
  const auto ranks = static_cast<size_t>(rank->size());
  const int64_t rows = of.counts[0] * rank->size() + 1;
  int64_t first = 0;
  for (int other = 0; other < rank->rank(); ++other) {
    first += ScatteredRows(rows, ranks, static_cast<size_t>(other));
  }
  const int64_t count =
      ScatteredRows(rows, ranks, static_cast<size_t>(rank->rank()));
  Values values;
  for (int64_t i = first; i < first + count; ++i) {
    values.push_back(Reduced(of.op, rank->size(), i));
  }
  DeviceTensor tensor;
  TF_HVD_RETURN_IF_ERROR(Lay(rank, of.dtype, ElementsOf(rank->rank(), rows),
                             count, false, &tensor));
  expected->outputs.emplace_back(tensor.output, Encode(of.dtype, values));
  expected->reply = rank->Reducescatter(of.name, of.dtype, tensor, of.op);
  return Status::Ok();
}

std::vector<Collective> Reductions() {
  const std::vector<int64_t> odd = {1, 300'001, 2, 77, 4096};
  std::vector<Collective> list;
  for (const DType dtype :
       {DType::kUint8, DType::kInt8, DType::kInt32, DType::kUint32,
        DType::kInt64, DType::kUint64, DType::kFloat16, DType::kBfloat16,
        DType::kFloat32, DType::kFloat64, DType::kInt16}) {
    list.push_back({"sum " + std::string(NameOf(dtype)), Allreduce, dtype});
  }
  list.push_back({"average", Allreduce, DType::kFloat32, ReduceOp::kAverage});
  list.push_back({"average of a group", Allreduce, DType::kFloat32,
                  ReduceOp::kAverage, odd});
  list.push_back(
      {"average int32", Allreduce, DType::kInt32, ReduceOp::kAverage});
  list.push_back(
      {"group float16", Allreduce, DType::kFloat16, ReduceOp::kSum, odd});
  list.push_back({"large in place",
                  Allreduce,
                  DType::kFloat32,
                  ReduceOp::kSum,
                  {700'003},
                  1,
                  1,
                  true});
  list.push_back(
      {"scaled", Allreduce, DType::kFloat32, ReduceOp::kSum, odd, 0.5, 4});
  list.push_back({"product", Allreduce, DType::kInt64, ReduceOp::kProduct});
  list.push_back({"max int32", Allreduce, DType::kInt32, ReduceOp::kMax});
  list.push_back({"min float32", Allreduce, DType::kFloat32, ReduceOp::kMin});
  return list;
}

std::vector<Collective> MakeList() {
  std::vector<Collective> list = Reductions();
  list.push_back({"rows int64", Allgather, DType::kInt64, ReduceOp::kSum, {5}});
  list.push_back(
      {"rows float16", Allgather, DType::kFloat16, ReduceOp::kSum, {100'001}});
  list.push_back(
      {"no rows of rank 0", Allgather, DType::kUint8, ReduceOp::kSum, {0}});
  list.push_back({"from the last",
                  Broadcast,
                  DType::kFloat64,
                  ReduceOp::kSum,
                  {1003},
                  1,
                  1,
                  false,
                  -1});
  list.push_back({"from the first, in place",
                  Broadcast,
                  DType::kUint8,
                  ReduceOp::kSum,
                  {300'001},
                  1,
                  1,
                  true,
                  0});
  list.push_back(
      {"exchange", Alltoall, DType::kFloat32, ReduceOp::kSum, {333}});
  list.push_back(
      {"exchange int16", Alltoall, DType::kInt16, ReduceOp::kSum, {1}});
  list.push_back(
      {"scatter", Reducescatter, DType::kFloat32, ReduceOp::kSum, {1001}});
  list.push_back(
      {"scatter max int64", Reducescatter, DType::kInt64, ReduceOp::kMax, {3}});
  return list;
}

const std::vector<Collective>& List() {
  static const std::vector<Collective> list = MakeList();
  return list;
}

Status Check(DeviceRank* rank, const std::string& name, Expected* expected) {
  TF_HVD_RETURN_IF_ERROR(DeviceRank::Wait(std::move(expected->reply), name));
  for (const auto& [output, bytes] : expected->outputs) {
    std::string got(bytes.size(), '\0');
    TF_HVD_RETURN_IF_ERROR(rank->side()->Download(output, &got[0], got.size()));
    if (got == bytes) continue;
    const auto at = std::mismatch(got.begin(), got.end(), bytes.begin());
    return Internal(name + " is wrong at byte " +
                    std::to_string(at.first - got.begin()));
  }
  return Status::Ok();
}

}  // namespace

size_t CollectiveCount() { return 2 * List().size(); }

Status CheckCollectives(DeviceRank& rank) {
  for (const Collective& one : List()) {
    Expected expected;
    TF_HVD_RETURN_IF_ERROR(one.ask(one, &rank, &expected));
    TF_HVD_RETURN_IF_ERROR(Check(&rank, one.name, &expected));
  }
  std::vector<Expected> all(List().size());
  for (size_t i = 0; i < all.size(); ++i) {
    TF_HVD_RETURN_IF_ERROR(List()[i].ask(List()[i], &rank, &all[i]));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    TF_HVD_RETURN_IF_ERROR(
        Check(&rank, List()[i].name + ", among others", &all[i]));
  }
  return DeviceRank::Wait(rank.Barrier("end"), "end");
}

Status KillAmidAllreduces(DeviceRank& rank, int killed) {
  constexpr int64_t kCount = int64_t{16} << 20;
  constexpr int kBefore = 5;
  static constexpr std::chrono::milliseconds kAmid{20};
  char* memory = nullptr;
  TF_HVD_RETURN_IF_ERROR(
      rank.side()->Allocate(kCount * sizeof(float), &memory));
  const DeviceTensor tensor = {memory, memory, kCount};
  const auto ask = [&] {
    return rank.Allreduce("large", DType::kFloat32, {tensor}, ReduceOp::kSum);
  };
  for (int i = 0; i < kBefore; ++i) {
    TF_HVD_RETURN_IF_ERROR(DeviceRank::Wait(ask(), "an allreduce"));
  }
  std::thread killer;
  if (rank.rank() == killed) {
    killer = std::thread([] {
      std::this_thread::sleep_for(kAmid);
      kill(getpid(), SIGKILL);
    });
  }
  auto last = std::chrono::steady_clock::now();
  Status status;
  while (status.ok()) {
    last = std::chrono::steady_clock::now();
    status = DeviceRank::Wait(ask(), "an allreduce");
  }
  if (killer.joinable()) killer.join();
  const std::string dead = "rank " + std::to_string(killed) + " ";
  if (status.message().find(dead) == std::string::npos) return status;
  const std::chrono::duration<double, std::milli> took =
      std::chrono::steady_clock::now() - last;
  std::printf("rank %d got the error %.0f ms after its last call: %s\n",
              rank.rank(), took.count(), status.message().c_str());
  return Status::Ok();
}

}  // namespace tf_hvd
