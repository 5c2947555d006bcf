// device_bandwidth [--cuda=LIBRARY] [--device=N] [--repetitions=N]
//                  [--megabytes=N]
//
// The launches that pack and unpack gradients, as the runtime plans them
// (gpu/plan.h), against copies of as many bytes within the device: in turns,
// medians by the device's own clock. ResNet-50's gradients, and one tensor of
// so many MiB.
//
// For tests/run_gpu.sh: the last line says the least of the shares of the
// copy's speed; 0 if it was measured, 3 if there is no GPU.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "runtime/transport/gpu/plan.h"
#include "tests/gpu/device_side.h"
#include "tests/gpu/program_options.h"

namespace tf_hvd {
namespace {

constexpr size_t kStagingBytes = size_t{64} << 20;
constexpr double kWanted = 0.85;
constexpr unsigned kEventDefault = 0;  // it takes the time

// Elements of the 161 gradients: convolutions and, behind each, the two vectors
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

// Events that take the time. Not the runtime's: these two functions are no part
// of its table.
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
    if (elapsed_ == nullptr) return Aborted("there is no cuEventElapsedTime");
    return side_->device()->Within([this]() -> Status {
      for (CUevent_st*& event : events_) {
        TF_HVD_RETURN_IF_ERROR(
            FromCuda(*cuda_, "cuEventCreate",
                     cuda_->event_create(&event, kEventDefault)));
      }
      return Status::Ok();
    });
  }

  // How long the device takes for what `put` puts on the stream.
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

// Launches that move so many bytes, and what they read besides.
struct Moves {
  std::string what;
  std::vector<GpuMove> launches;
  std::vector<std::shared_ptr<char>> rows;  // pinned
  int64_t bytes = 0;
};

class Bandwidth {
 public:
  Bandwidth(DeviceSide* side, Stopwatch* watch) : side_(side), watch_(watch) {}

  // An allreduce of tensors with so many elements, on two ranks.
  Status Prepare(const std::string& name, const std::vector<int64_t>& counts,
                 ReduceOp op, bool in_place) {
    OperationSpec spec;
    spec.kind = OpKind::kAllreduce;
    spec.ranks = MembersOf({0, 1});
    spec.memory.kind = MemoryKind::kDevice;
    spec.reduce.op = op;
    for (const int64_t count : counts) {
      char* memory[2] = {nullptr, nullptr};
      for (char*& one : memory) {
        TF_HVD_RETURN_IF_ERROR(
            side_->Allocate(static_cast<size_t>(count) * sizeof(float), &one));
      }
      spec.spans.push_back({memory[0], memory[in_place ? 0 : 1], count});
    }
    if (staging_ == nullptr) {
      TF_HVD_RETURN_IF_ERROR(side_->Allocate(kStagingBytes, &staging_));
    }
    Moves pack{name + ", packed", {}, {}};
    Moves unpack{name + ", unpacked", {}, {}};
    GpuStaging staging;
    staging.memory = staging_;
    staging.bytes = kStagingBytes;
    for (const GpuPiece& piece : PlanOnGpu(spec, 0, staging, {}).pieces) {
      TF_HVD_RETURN_IF_ERROR(Add(piece.pack, &pack));
      TF_HVD_RETURN_IF_ERROR(Add(piece.unpack, &unpack));
    }
    for (Moves* const moves : {&pack, &unpack}) {
      if (!moves->launches.empty()) all_.push_back(std::move(*moves));
    }
    return Status::Ok();
  }

  // In turns; gives the least share of the copy's speed.
  Status Measure(int repetitions, double* least, std::string* slowest) {
    *least = 1e9;
    for (const Moves& moves : all_) {
      double copy = 0;
      double move = 0;
      TF_HVD_RETURN_IF_ERROR(MeasureOne(moves, repetitions, &copy, &move));
      const auto gigabytes = static_cast<double>(moves.bytes) / 1e9;
      const double share = copy / move;
      std::printf("%-34s %9.1f MB %8.1f GB/s, a copy %8.1f GB/s: %5.1f %%\n",
                  moves.what.c_str(), gigabytes * 1e3, gigabytes / move,
                  gigabytes / copy, share * 100);
      if (share >= *least) continue;
      *least = share;
      *slowest = moves.what;
    }
    return Status::Ok();
  }

 private:
  Status Add(const GpuMove& move, Moves* moves) {
    if (move.empty()) return Status::Ok();
    std::shared_ptr<char> rows;
    TF_HVD_RETURN_IF_ERROR(side_->device()->Allocate(MemoryKind::kPinned,
                                                     move.row_bytes(), &rows));
    moves->bytes +=
        move.arguments.total * (GpuMove::kTileBytes / move.arguments.tile);
    moves->rows.push_back(rows);
    return Status::Ok();
  }

  Status MeasureOne(const Moves& moves, int repetitions, double* copy,
                    double* move) {
    const auto bytes = static_cast<size_t>(moves.bytes);
    char* memory[2] = {nullptr, nullptr};
    for (char*& one : memory) {
      TF_HVD_RETURN_IF_ERROR(side_->Allocate(bytes, &one));
    }
    std::vector<double> copies;
    std::vector<double> launches;
    for (int i = -2; i < repetitions; ++i) {  // the first two do not count
      double seconds[2] = {0, 0};
      TF_HVD_RETURN_IF_ERROR(watch_->Time(
          [&] {
            return side_->device()->Copy(side_->stream(), memory[1], memory[0],
                                         bytes);
          },
          &seconds[0]));
      TF_HVD_RETURN_IF_ERROR(
          watch_->Time([&] { return Launch(moves); }, &seconds[1]));
      if (i < 0) continue;
      copies.push_back(seconds[0]);
      launches.push_back(seconds[1]);
    }
    for (char* const one : memory) side_->Free(one);
    *copy = Median(std::move(copies));
    *move = Median(std::move(launches));
    return Status::Ok();
  }

  Status Launch(const Moves& moves) {
    for (size_t i = 0; i < moves.launches.size(); ++i) {
      TF_HVD_RETURN_IF_ERROR(side_->device()->Launch(
          side_->stream(), moves.launches[i], moves.rows[i].get()));
    }
    return Status::Ok();
  }

  static double Median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  }

  DeviceSide* const side_;
  Stopwatch* const watch_;
  char* staging_ = nullptr;
  std::vector<Moves> all_;
};

Status MeasureAll(const ProgramOptions& options, const CudaApi* cuda,
                  std::string* said) {
  std::unique_ptr<DeviceSide> side;
  TF_HVD_RETURN_IF_ERROR(
      DeviceSide::Open(cuda, options.Number("device", 0), &side));
  Stopwatch watch(cuda, side.get(), options.Text("cuda", ""));
  TF_HVD_RETURN_IF_ERROR(watch.Open());
  Bandwidth bandwidth(side.get(), &watch);
  const int64_t one = int64_t{options.Number("megabytes", 256)} << 18;
  TF_HVD_RETURN_IF_ERROR(
      bandwidth.Prepare("ResNet-50, Sum", Resnet50(), ReduceOp::kSum, false));
  TF_HVD_RETURN_IF_ERROR(bandwidth.Prepare("ResNet-50, Average", Resnet50(),
                                           ReduceOp::kAverage, false));
  TF_HVD_RETURN_IF_ERROR(bandwidth.Prepare("one tensor in place, Average",
                                           {one}, ReduceOp::kAverage, true));
  double least = 0;
  std::string slowest;
  TF_HVD_RETURN_IF_ERROR(bandwidth.Measure(
      std::max(1, options.Number("repetitions", 20)), &least, &slowest));
  char text[200];
  std::snprintf(text, sizeof(text),
                "%s of %.0f %%: the least is %.0f %% of a copy (%s)",
                least >= kWanted ? "more than the target" : "below the target",
                kWanted * 100, least * 100, slowest.c_str());
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
