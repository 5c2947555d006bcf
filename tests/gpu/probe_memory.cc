// Unwanted waits: small copies behind large ones, and driver calls that wait
// for a running kernel.
#include <thread>
#include <vector>

#include "compute/device_image.h"
#include "runtime/transport/gpu/move.h"
#include "tests/gpu/device_probes.h"

namespace tf_hvd {
namespace {

constexpr size_t kFewBytes = 24;  // a row of a list of moves
constexpr size_t kPieceBytes = size_t{4} << 20;
constexpr int kCopyRepetitions = 10;

// Memory of both kinds, from which a piece is copied repeatedly.
struct Copies {
  CudaStream many = nullptr;
  CudaStream few = nullptr;
  char* device[2] = {nullptr, nullptr};
  char* small = nullptr;
  std::shared_ptr<char> pinned;
  std::shared_ptr<char> pinned_small;
  char pageable[kFewBytes] = {};

  Status Open(const ProbeSide& side) {
    TF_HVD_RETURN_IF_ERROR(side.device()->NewStream(&many));
    TF_HVD_RETURN_IF_ERROR(side.device()->NewStream(&few));
    for (char*& one : device) {
      TF_HVD_RETURN_IF_ERROR(side.side()->Allocate(kPieceBytes, &one));
    }
    TF_HVD_RETURN_IF_ERROR(side.side()->Allocate(kFewBytes, &small));
    TF_HVD_RETURN_IF_ERROR(
        side.device()->Allocate(MemoryKind::kPinned, kPieceBytes, &pinned));
    return side.device()->Allocate(MemoryKind::kPinned, kFewBytes,
                                   &pinned_small);
  }
};

struct Way {
  const char* name;
  char* to;
  const char* from;
};

// Enqueues the large copies; `ended` fires after them.
Status PutMany(const ProbeSide& side, const Copies& copies, const Way& way,
               std::shared_ptr<GpuEvent>* ended) {
  for (size_t done = 0; way.to != nullptr && done < side.large();
       done += kPieceBytes) {
    TF_HVD_RETURN_IF_ERROR(
        side.device()->Copy(copies.many, way.to, way.from, kPieceBytes));
  }
  return side.device()->Record(copies.many, ended);
}

// After the way's copies: the time from `put`, which enqueues work on a
// separate stream, until that work is done.
Status TimeBehind(const ProbeSide& side, const Copies& copies, const Way& way,
                  const std::string& what, const std::function<Status()>& put,
                  Figures* figures) {
  std::vector<double> took;
  for (int i = 0; i < kCopyRepetitions; ++i) {
    std::shared_ptr<GpuEvent> many;
    std::shared_ptr<GpuEvent> few;
    TF_HVD_RETURN_IF_ERROR(PutMany(side, copies, way, &many));
    const auto start = ProbeClock::now();
    TF_HVD_RETURN_IF_ERROR(put());
    TF_HVD_RETURN_IF_ERROR(side.device()->Record(copies.few, &few));
    TF_HVD_RETURN_IF_ERROR(side.Await(*few));
    took.push_back(MicrosecondsSince(start));
    TF_HVD_RETURN_IF_ERROR(side.Await(*many));
  }
  figures->Add(what + "_" + way.name + "_us", Percentile(took, 50));
  return Status::Ok();
}

Status TimeMany(const ProbeSide& side, const Copies& copies, const Way& way,
                Figures* figures) {
  const auto start = ProbeClock::now();
  std::shared_ptr<GpuEvent> many;
  TF_HVD_RETURN_IF_ERROR(PutMany(side, copies, way, &many));
  TF_HVD_RETURN_IF_ERROR(side.Await(*many));
  figures->Add(std::string("large_") + way.name + "_us",
               MicrosecondsSince(start));
  return Status::Ok();
}

// Calls while a kernel runs on a separate stream.
class Waits {
 public:
  Waits(const ProbeSide& side, Figures* figures)
      : side_(side),
        figures_(figures),
        runs_(side.options().Number("wait_ms", 200)) {}

  Status Open() {
    TF_HVD_RETURN_IF_ERROR(side_.device()->NewStream(&stream_));
    return flag_.Open(side_.device());
  }

  Status Try(const std::string& name, const std::function<int()>& call) {
    flag_.Set(false);
    std::shared_ptr<GpuEvent> ended;
    TF_HVD_RETURN_IF_ERROR(side_.Spin(stream_, flag_, runs_));
    TF_HVD_RETURN_IF_ERROR(side_.device()->Record(stream_, &ended));
    std::this_thread::sleep_for(runs_ / 20);  // the kernel is running
    const auto start = ProbeClock::now();
    const Status status = Within(side_, name.c_str(), call);
    const double took = MicrosecondsSince(start) / 1e3;
    bool over = false;
    TF_HVD_RETURN_IF_ERROR(side_.device()->HasFired(*ended, &over));
    flag_.Set(true);
    TF_HVD_RETURN_IF_ERROR(side_.Await(*ended));
    TF_HVD_RETURN_IF_ERROR(status);
    figures_->Add(name + "_ms", took);
    figures_->Add(name + "_waits", over ? 1 : 0);
    return Status::Ok();
  }

 private:
  const ProbeSide& side_;
  Figures* const figures_;
  const std::chrono::milliseconds runs_;
  CudaStream stream_ = nullptr;
  Flag flag_;
};

Status TryMemory(const ProbeSide& side, Waits* waits) {
  const CudaApi& cuda = side.cuda();
  for (const size_t bytes : {size_t{1} << 16, side.large()}) {
    const std::string size = bytes == side.large() ? "_large" : "_small";
    CudaPointer memory = 0;
    void* pinned = nullptr;
    TF_HVD_RETURN_IF_ERROR(waits->Try(
        "cuMemAlloc" + size, [&] { return cuda.mem_alloc(&memory, bytes); }));
    TF_HVD_RETURN_IF_ERROR(
        waits->Try("cuMemFree" + size, [&] { return cuda.mem_free(memory); }));
    TF_HVD_RETURN_IF_ERROR(waits->Try("cuMemHostAlloc" + size, [&] {
      return cuda.mem_host_alloc(&pinned, bytes, 0);
    }));
    TF_HVD_RETURN_IF_ERROR(waits->Try(
        "cuMemFreeHost" + size, [&] { return cuda.mem_free_host(pinned); }));
  }
  return Status::Ok();
}

Status ImageFor(const ProbeSide& side, const void** image) {
  const CudaApi& cuda = side.cuda();
  int device = 0;
  TF_HVD_RETURN_IF_ERROR(FromCuda(
      cuda, "cuDeviceGet", cuda.device_get(&device, side.device()->ordinal())));
  int capability[2] = {0, 0};
  for (int i = 0; i < 2; ++i) {
    TF_HVD_RETURN_IF_ERROR(
        FromCuda(cuda, "cuDeviceGetAttribute",
                 cuda.device_get_attribute(&capability[i],
                                           kCudaCapabilityMajor + i, device)));
  }
  *image = DeviceImage(capability[0], capability[1]);
  return *image == nullptr ? FailedPrecondition("no code for this device")
                           : Status::Ok();
}

// For a module: the driver may postpone loading until a function is looked up
// or launched for the first time.
Status TryCode(const ProbeSide& side, Waits* waits) {
  const CudaApi& cuda = side.cuda();
  const CudaStream stream = side.side()->stream();
  const void* image = nullptr;
  TF_HVD_RETURN_IF_ERROR(ImageFor(side, &image));
  char* moved[2] = {nullptr, nullptr};
  char* rows = nullptr;
  for (char*& one : moved) {
    TF_HVD_RETURN_IF_ERROR(side.side()->Allocate(kFewBytes, &one));
  }
  MoveBuilder builder{Scaling()};
  builder.Add(moved[0], moved[1], kFewBytes);
  const GpuMove move = builder.Build();
  TF_HVD_RETURN_IF_ERROR(side.side()->Allocate(move.row_bytes(), &rows));
  TF_HVD_RETURN_IF_ERROR(side.side()->Upload(
      rows, reinterpret_cast<const char*>(move.rows.data()), move.row_bytes()));
  MoveArguments arguments = move.arguments;
  arguments.rows = reinterpret_cast<const MoveRow*>(rows);
  void* values[] = {&arguments};
  CudaModule module = nullptr;
  CudaFunction function = nullptr;
  TF_HVD_RETURN_IF_ERROR(waits->Try("cuModuleLoadData", [&] {
    return cuda.module_load_data(&module, image);
  }));
  TF_HVD_RETURN_IF_ERROR(waits->Try("cuModuleGetFunction", [&] {
    return cuda.module_get_function(&function, module, move.kernel.c_str());
  }));
  TF_HVD_RETURN_IF_ERROR(waits->Try("cuLaunchKernel_first", [&] {
    return cuda.launch_kernel(function, move.blocks(), 1, 1, GpuMove::kThreads,
                              1, 1, 0, stream, values, nullptr);
  }));
  TF_HVD_RETURN_IF_ERROR(side.side()->Finish());
  return waits->Try("cuModuleUnload",
                    [&] { return cuda.module_unload(module); });
}

Status TryHandles(const ProbeSide& side, Waits* waits) {
  const CudaApi& cuda = side.cuda();
  CudaEvent event = nullptr;
  CudaStream stream = nullptr;
  TF_HVD_RETURN_IF_ERROR(waits->Try("cuEventCreate", [&] {
    return cuda.event_create(&event, kCudaEventDisableTiming);
  }));
  TF_HVD_RETURN_IF_ERROR(
      waits->Try("cuEventDestroy", [&] { return cuda.event_destroy(event); }));
  TF_HVD_RETURN_IF_ERROR(waits->Try("cuStreamCreate", [&] {
    return cuda.stream_create_with_priority(&stream, kCudaStreamNonBlocking, 0);
  }));
  return waits->Try("cuStreamDestroy",
                    [&] { return cuda.stream_destroy(stream); });
}

}  // namespace

Status ProbeCopies(const ProbeSide& side, Figures* figures) {
  Copies copies;
  TF_HVD_RETURN_IF_ERROR(copies.Open(side));
  const Way ways[] = {
      {"without_copies", nullptr, nullptr},
      {"behind_copies_to_the_device", copies.device[0], copies.pinned.get()},
      {"behind_copies_from_the_device", copies.pinned.get(), copies.device[0]},
      {"behind_copies_within_the_device", copies.device[1], copies.device[0]},
  };
  for (const Way& way : ways) {
    TF_HVD_RETURN_IF_ERROR(TimeBehind(
        side, copies, way, "pinned",
        [&] {
          return side.device()->Copy(copies.few, copies.small,
                                     copies.pinned_small.get(), kFewBytes);
        },
        figures));
    // Reads four bytes of pinned memory, and copies nothing.
    TF_HVD_RETURN_IF_ERROR(TimeBehind(
        side, copies, way, "kernel_reads_pinned",
        [&] {
          return side.device()->Within(
              [&] { return side.LaunchNothing(copies.few); });
        },
        figures));
    if (way.to != nullptr) {
      TF_HVD_RETURN_IF_ERROR(TimeMany(side, copies, way, figures));
    }
    if (side.more().memcpy_to_device == nullptr) continue;
    TF_HVD_RETURN_IF_ERROR(TimeBehind(
        side, copies, way, "pageable",
        [&] {
          return Within(side, "cuMemcpyHtoDAsync", [&] {
            return side.more().memcpy_to_device(
                reinterpret_cast<CudaPointer>(copies.small), copies.pageable,
                kFewBytes, copies.few);
          });
        },
        figures));
  }
  return Status::Ok();
}

Status ProbeWaits(const ProbeSide& side, Figures* figures) {
  Waits waits(side, figures);
  TF_HVD_RETURN_IF_ERROR(waits.Open());
  TF_HVD_RETURN_IF_ERROR(waits.Try("nothing", [] { return 0; }));
  TF_HVD_RETURN_IF_ERROR(TryMemory(side, &waits));
  TF_HVD_RETURN_IF_ERROR(TryHandles(side, &waits));
  return TryCode(side, &waits);
}

}  // namespace tf_hvd
