// device_bandwidth [--cuda=LIBRARY] [--device=N] [--repetitions=N]
//                  [--megabytes=N] [--share=N] [--only=TEXT]
//                  [--rows=device]
//
// Measures the launches that pack and unpack gradients, as the runtime plans
// them (gpu/plan.h), against copies of the same number of bytes within the
// device. Launches and copies are interleaved; results are medians by the
// device's own clock. The tensors are ResNet-50's gradients (--share=8: an
// eighth), and one tensor of --megabytes MiB. They are in float32, in half
// precisions, and in float32 cast to half-precision types and back. For a cast,
// the copy has half of the bytes that are read and written. --only: cases with
// TEXT in their names. --rows=device: the launches' lists of tensors are in
// device memory, to measure the cost of the runtime's lists in pinned memory.
//
// For tests/run_gpu.sh: the last line has the smallest share of the copy's
// speed. Exits with 0 if it was measured, and with 3 if there is no GPU.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "runtime/transport/gpu/plan.h"
#include "tests/gpu/device_side.h"
#include "tests/gpu/percentile.h"
#include "tests/gpu/program_options.h"

namespace tf_hvd {
namespace {

constexpr size_t kStagingBytes = size_t{64} << 20;
constexpr double kWanted = 0.85;
constexpr unsigned kEventDefault = 0;  // events that measure time

// Elements of the 161 gradients: convolutions, each followed by the two vectors
// of its normalization.
std::vector<int64_t> Resnet50() {
  std::vector<int64_t> counts;
  const auto convolution = [&counts](int64_t in, int64_t out, int64_t size) {
    counts.insert(counts.end(), {in * out * size * size, out, out});
  };
  convolution(3, 64, 7);
  int64_t in = 64;
  int64_t planes = 64;
  for (const int blocks : {3, 4, 6, 3}) {
    for (int block = 0; block < blocks; ++block) {
      convolution(in, planes, 1);
      convolution(planes, planes, 3);
      convolution(planes, 4 * planes, 1);
      if (block == 0) convolution(in, 4 * planes, 1);
      in = 4 * planes;
    }
    planes *= 2;
  }
  counts.insert(counts.end(), {in * 1000, 1000});
  return counts;
}

// Events that measure time. The two functions are not part of the runtime's
// table.
class Stopwatch {
 public:
  Stopwatch(const CudaApi* cuda, DeviceSide* side, const std::string& library)
      : cuda_(cuda), side_(side) {
    void* const opened =
        dlopen(library.empty() ? "libcuda.so.1" : library.c_str(), RTLD_NOW);
    if (opened == nullptr) return;
    elapsed_ = reinterpret_cast<Elapsed>(dlsym(opened, "cuEventElapsedTime"));
  }
  ~Stopwatch() {
    static_cast<void>(side_->device()->Within([this] {
      for (CUevent_st* event : events_) {
        if (event != nullptr) static_cast<void>(cuda_->event_destroy(event));
      }
      return Status::Ok();
    }));
  }

  Status Open() {
    if (elapsed_ == nullptr)
      return Aborted("the driver does not export cuEventElapsedTime");
    return side_->device()->Within([this]() -> Status {
      for (CUevent_st*& event : events_) {
        TF_HVD_RETURN_IF_ERROR(
            FromCuda(*cuda_, "cuEventCreate",
                     cuda_->event_create(&event, kEventDefault)));
      }
      return Status::Ok();
    });
  }

  // The device's time for the work that `put` enqueues on the stream.
  Status Time(const std::function<Status()>& put, double* seconds) {
    TF_HVD_RETURN_IF_ERROR(Record(events_[0]));
    TF_HVD_RETURN_IF_ERROR(put());
    TF_HVD_RETURN_IF_ERROR(Record(events_[1]));
    TF_HVD_RETURN_IF_ERROR(side_->Finish());
    return side_->device()->Within([&]() -> Status {
      float milliseconds = 0;
      TF_HVD_RETURN_IF_ERROR(
          FromCuda(*cuda_, "cuEventElapsedTime",
                   elapsed_(&milliseconds, events_[0], events_[1])));
      *seconds = static_cast<double>(milliseconds) / 1e3;
      return Status::Ok();
    });
  }

 private:
  using Elapsed = int (*)(float* milliseconds, CUevent_st* start,
                          CUevent_st* end);

  Status Record(CUevent_st* event) {
    return side_->device()->Within([&] {
      return FromCuda(*cuda_, "cuEventRecord",
                      cuda_->event_record(event, side_->stream()));
    });
  }

  const CudaApi* const cuda_;
  DeviceSide* const side_;
  Elapsed elapsed_ = nullptr;
  CUevent_st* events_[2] = {nullptr, nullptr};
};

// The local part of an allreduce on one device.
struct Case {
  std::string name;
  std::vector<int64_t> counts;  // of the tensors' elements
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kAverage;
  bool in_place = false;
  // The tensors' type, if they are cast.
  std::optional<DType> stored = std::nullopt;
};

std::vector<Case> AllCases(const ProgramOptions& options) {
  std::vector<int64_t> resnet = Resnet50();
  const int share = std::max(1, options.Number("share", 1));
  resnet.resize(resnet.size() / static_cast<size_t>(share));
  const int64_t bytes = int64_t{options.Number("megabytes", 256)} << 20;
  std::vector<Case> all = {
      {"ResNet-50, Sum", resnet, DType::kFloat32, ReduceOp::kSum},
      {"ResNet-50, Average", resnet},
      {"one tensor in place, Average", {bytes / 4}}};
  all[2].in_place = true;
  for (const DType half : {DType::kFloat16, DType::kBfloat16}) {
    const std::string name = NameOf(half);
    all.push_back({"ResNet-50, " + name + ", Average", resnet, half});
    all.push_back({"one " + name + " tensor in place, Average",
                   {bytes / 2},
                   half,
                   ReduceOp::kAverage,
                   true});
    all.push_back({"ResNet-50, cast to " + name, resnet, half, ReduceOp::kSum,
                   false, DType::kFloat32});
    all.push_back({"ResNet-50, cast to " + name + ", Average", resnet, half,
                   ReduceOp::kAverage, false, DType::kFloat32});
  }
  return all;
}

// Numbers similar to gradients: other values, such as the zeros of new memory,
// may take different paths through the kernels.
std::vector<char> Pattern(DType dtype, size_t bytes) {
  std::mt19937 random(7);
  std::vector<char> made(bytes);
  for (size_t at = 0; at + sizeof(uint32_t) <= bytes; at += SizeOf(dtype)) {
    // Sign, an exponent from 2^-10, and a random fraction.
    uint32_t bits = static_cast<uint32_t>(random()) & 0x807fffffU;
    bits |= (117U + static_cast<uint32_t>(random()) % 10U) << 23;
    if (dtype == DType::kBfloat16) bits >>= 16;
    if (dtype == DType::kFloat16) {
      bits = (bits & 0x83ffU) | (5U + bits % 10U) << 10;
    }
    std::memcpy(made.data() + at, &bits, sizeof(bits));
  }
  return made;
}

// Launches, and the other memory that they read.
struct Moves {
  std::string what;
  std::vector<GpuMove> launches;
  std::vector<MoveArguments> arguments;
  std::vector<std::shared_ptr<char>> rows;  // owners of the launches' rows
  int64_t bytes = 0;  // size of a copy that reads and writes the same number
};

class Bandwidth {
 public:
  Bandwidth(DeviceSide* side, Stopwatch* watch, int repetitions,
            bool rows_on_device)
      : side_(side),
        watch_(watch),
        repetitions_(repetitions),
        rows_on_device_(rows_on_device) {}

  // Allocates memory for the largest of them.
  Status Open(const std::vector<Case>& cases) {
    size_t room = 0;
    for (const Case& one : cases) room = std::max(room, RoomFor(one));
    for (char*& memory : memory_) {
      TF_HVD_RETURN_IF_ERROR(side_->Allocate(room, &memory));
    }
    return side_->Allocate(kStagingBytes, &staging_);
  }

  // Measures packing and unpacking, each interleaved with copies.
  Status Measure(const Case& one) {
    Moves pack;
    Moves unpack;
    const size_t room = RoomFor(one);
    TF_HVD_RETURN_IF_ERROR(
        Fill(memory_[0], one.stored.value_or(one.dtype), room));
    TF_HVD_RETURN_IF_ERROR(
        Fill(staging_, one.dtype, std::min(room, kStagingBytes)));
    TF_HVD_RETURN_IF_ERROR(Prepare(one, &pack, &unpack));
    for (const Moves* moves : {&pack, &unpack}) {
      if (moves->launches.empty()) continue;
      TF_HVD_RETURN_IF_ERROR(MeasureOne(*moves));
    }
    return Status::Ok();
  }

  // The smallest share of the copy's speed, and its case.
  double least() const { return least_; }
  const std::string& slowest() const { return slowest_; }

 private:
  static size_t BytesOf(const Case& one, int64_t count) {
    return static_cast<size_t>(count) * SizeOf(one.stored.value_or(one.dtype));
  }

  // The alignment of cuMemAlloc.
  static size_t Aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

  static size_t RoomFor(const Case& one) {
    size_t room = 0;
    for (const int64_t count : one.counts) {
      room += Aligned(BytesOf(one, count));
    }
    return room;
  }

  Status Fill(char* memory, DType dtype, size_t bytes) {
    const std::vector<char> pattern =
        Pattern(dtype, std::min(bytes, size_t{1} << 20));
    for (size_t at = 0; at < bytes; at += pattern.size()) {
      TF_HVD_RETURN_IF_ERROR(side_->Upload(
          memory + at, pattern.data(), std::min(pattern.size(), bytes - at)));
    }
    return Status::Ok();
  }

  Status Prepare(const Case& one, Moves* pack, Moves* unpack) {
    OperationSpec spec;
    spec.kind = OpKind::kAllreduce;
    spec.ranks = MembersOf({0, 1});
    spec.memory.kind = MemoryKind::kDevice;
    spec.reduce.op = one.op;
    spec.reduce.dtype = one.dtype;
    spec.stored = one.stored;
    size_t at = 0;
    for (const int64_t count : one.counts) {
      spec.spans.push_back(
          {memory_[0] + at, memory_[one.in_place ? 0 : 1] + at, count});
      at += Aligned(BytesOf(one, count));
    }
    pack->what = one.name + ", packed";
    unpack->what = one.name + ", unpacked";
    GpuStaging staging;
    staging.memory = staging_;
    staging.bytes = kStagingBytes;
    // Bytes of an element that is read and written.
    const double bytes =
        static_cast<double>(SizeOf(one.dtype) +
                            SizeOf(one.stored.value_or(one.dtype))) /
        2 / static_cast<double>(SizeOf(one.dtype));
    for (const GpuPiece& piece : PlanOnGpu(spec, 0, staging, {}).pieces) {
      TF_HVD_RETURN_IF_ERROR(Add(piece.pack, bytes, pack));
      TF_HVD_RETURN_IF_ERROR(Add(piece.unpack, bytes, unpack));
    }
    return Status::Ok();
  }

  Status PutRows(const GpuMove& move, std::shared_ptr<char>* rows,
                 MoveArguments* arguments) {
    const size_t bytes = move.row_bytes();
    GpuDevice* const device = side_->device();
    if (!rows_on_device_) {
      TF_HVD_RETURN_IF_ERROR(
          device->Allocate(MemoryKind::kPinned, bytes, rows));
      *arguments = move.WriteRows(rows->get());
      return Status::Ok();
    }
    TF_HVD_RETURN_IF_ERROR(device->Allocate(MemoryKind::kDevice, bytes, rows));
    std::vector<uint64_t> written(bytes / sizeof(uint64_t));
    char* const at = reinterpret_cast<char*>(written.data());
    *arguments = move.WriteRows(at);
    arguments->rows = reinterpret_cast<const MoveRow*>(rows->get());
    if (arguments->first_rows != nullptr) {
      const auto before =
          reinterpret_cast<const char*>(arguments->first_rows) - at;
      arguments->first_rows =
          reinterpret_cast<const uint32_t*>(rows->get() + before);
    }
    return side_->Upload(rows->get(), at, bytes);
  }

  // `share`: fraction of the bytes that the move counts.
  Status Add(const GpuMove& move, double share, Moves* moves) {
    if (move.empty()) return Status::Ok();
    std::shared_ptr<char> rows;
    MoveArguments arguments;
    TF_HVD_RETURN_IF_ERROR(PutRows(move, &rows, &arguments));
    const int64_t unit = GpuMove::kTileBytes / move.arguments.tile;
    moves->bytes += static_cast<int64_t>(
        static_cast<double>(move.arguments.total * unit) * share);
    moves->launches.push_back(move);
    moves->arguments.push_back(arguments);
    moves->rows.push_back(std::move(rows));
    return Status::Ok();
  }

  Status MeasureOne(const Moves& moves) {
    const auto bytes = static_cast<size_t>(moves.bytes);
    std::vector<double> copies;
    std::vector<double> launches;
    for (int i = -2; i < repetitions_; ++i) {  // the first two are warm-up
      double seconds[2] = {0, 0};
      TF_HVD_RETURN_IF_ERROR(watch_->Time(
          [&] {
            return side_->device()->Copy(side_->stream(), memory_[1],
                                         memory_[0], bytes);
          },
          &seconds[0]));
      TF_HVD_RETURN_IF_ERROR(
          watch_->Time([&] { return Launch(moves); }, &seconds[1]));
      if (i < 0) continue;
      copies.push_back(seconds[0]);
      launches.push_back(seconds[1]);
    }
    Tell(moves, Percentile(std::move(copies), 50),
         Percentile(std::move(launches), 50));
    return Status::Ok();
  }

  void Tell(const Moves& moves, double copy, double move) {
    const auto gigabytes = static_cast<double>(moves.bytes) / 1e9;
    const double share = copy / move;
    std::printf(
        "%-48s %9.1f MB %8.1f GB/s, a copy %8.1f GB/s: %5.1f %% by %s\n",
        moves.what.c_str(), gigabytes * 1e3, gigabytes / move, gigabytes / copy,
        share * 100, moves.launches[0].kernel.c_str());
    std::fflush(stdout);
    if (share >= least_) return;
    least_ = share;
    slowest_ = moves.what;
  }

  Status Launch(const Moves& moves) {
    for (size_t i = 0; i < moves.launches.size(); ++i) {
      const GpuMove& move = moves.launches[i];
      MoveArguments arguments = moves.arguments[i];
      void* values[] = {&arguments};
      TF_HVD_RETURN_IF_ERROR(
          side_->device()->Launch(side_->stream(), move.kernel, move.blocks(),
                                  GpuMove::kThreads, values));
    }
    return Status::Ok();
  }

  DeviceSide* const side_;
  Stopwatch* const watch_;
  const int repetitions_;
  const bool rows_on_device_;
  char* memory_[2] = {nullptr, nullptr};
  char* staging_ = nullptr;
  double least_ = 1e9;
  std::string slowest_;
};

Status MeasureAll(const ProgramOptions& options, const CudaApi* cuda,
                  std::string* said) {
  std::unique_ptr<DeviceSide> side;
  TF_HVD_RETURN_IF_ERROR(
      DeviceSide::Open(cuda, options.Number("device", 0), &side));
  Stopwatch watch(cuda, side.get(), options.Text("cuda", ""));
  TF_HVD_RETURN_IF_ERROR(watch.Open());
  Bandwidth bandwidth(side.get(), &watch,
                      std::max(1, options.Number("repetitions", 20)),
                      options.Text("rows", "") == "device");
  const std::vector<Case> cases = AllCases(options);
  TF_HVD_RETURN_IF_ERROR(bandwidth.Open(cases));
  const std::string only = options.Text("only", "");
  for (const Case& one : cases) {
    if (one.name.find(only) == std::string::npos) continue;
    TF_HVD_RETURN_IF_ERROR(bandwidth.Measure(one));
  }
  if (bandwidth.slowest().empty())
    return Aborted("no case has this text in its name: " + only);
  const double least = bandwidth.least();
  char text[200];
  std::snprintf(text, sizeof(text),
                "%s of %.0f %%: the least is %.0f %% of a copy (%s)",
                least >= kWanted ? "above the target" : "below the target",
                kWanted * 100, least * 100, bandwidth.slowest().c_str());
  *said = text;
  return Status::Ok();
}

int Main(const ProgramOptions& options) {
  const GpuLibraries libraries = options.Open();
  if (options.NoGpu(libraries)) return kNoGpu;
  std::string said;
  const Status status = MeasureAll(options, libraries.cuda, &said);
  return Report(status, said);
}

}  // namespace
}  // namespace tf_hvd

int main(int argc, char** argv) {
  return tf_hvd::Main(tf_hvd::ProgramOptions(argc, argv));
}
