#include "tests/gpu/probe_side.h"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace tf_hvd {
namespace {

constexpr std::chrono::seconds kLimit{60};

template <typename Function>
void Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
}

MoreCuda FindMore(const std::string& configured) {
  MoreCuda more;
  void* const library = dlopen(
      configured.empty() ? "libcuda.so.1" : configured.c_str(), RTLD_NOW);
  if (library == nullptr) return more;
  Find(library, "cuStreamQuery", &more.stream_query);
  Find(library, "cuMemcpyHtoDAsync_v2", &more.memcpy_to_device);
  Find(library, kSoftwareSpin, &more.software_spin);
  return more;
}

// Rounded to the digits that are useful to a reader.
std::string Rounded(double value) {
  char text[40];
  std::snprintf(text, sizeof(text), std::fabs(value) < 100 ? "%.2f" : "%.0f",
                value);
  return text;
}

}  // namespace

void Figures::Print() const {
  std::string line = probe_ + ":";
  for (const auto& [name, value] : values_) {
    line += " " + name + "=" + Rounded(value);
  }
  if (!not_here_.empty()) {
    std::string plain = not_here_;
    std::replace(plain.begin(), plain.end(), '\n', ' ');
    line += " not here: " + plain;
  }
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

double MicrosecondsSince(ProbeClock::time_point start) {
  return std::chrono::duration<double, std::micro>(ProbeClock::now() - start)
      .count();
}

Status Flag::Open(GpuDevice* device) {
  TF_HVD_RETURN_IF_ERROR(
      device->Allocate(MemoryKind::kPinned, sizeof(uint32_t), &memory_));
  Set(false);
  return Status::Ok();
}

Status ProbeSide::Open(const ProgramOptions& options,
                       const GpuLibraries& libraries, int ordinal,
                       std::unique_ptr<ProbeSide>* side) {
  std::unique_ptr<ProbeSide> made(new ProbeSide(options, libraries.cuda));
  made->more_ = FindMore(options.Text("cuda", ""));
  made->repetitions_ = std::max(1, options.Number("repetitions", 200));
  made->large_ =
      static_cast<size_t>(std::max(1, options.Number("megabytes", 256))) << 20;
  TF_HVD_RETURN_IF_ERROR(
      DeviceSide::Open(libraries.cuda, ordinal, &made->side_));
  TF_HVD_RETURN_IF_ERROR(made->set_.Open(made->device()));
  made->set_.Set(true);
  *side = std::move(made);
  return Status::Ok();
}

Status ProbeSide::LoadSpin() {
  int handle = 0;
  TF_HVD_RETURN_IF_ERROR(FromCuda(
      cuda(), "cuDeviceGet", cuda().device_get(&handle, device()->ordinal())));
  return device()->Within(
      [&] { return spin_.Load(cuda_, handle, more_.software_spin); });
}

Status ProbeSide::Spin(CudaStream stream, const Flag& flag,
                       std::chrono::milliseconds limit) const {
  const auto limit_ns =
      static_cast<uint64_t>(std::chrono::nanoseconds(limit).count());
  return device()->Within(
      [&] { return spin_.Launch(stream, flag.get(), limit_ns); });
}

Status ProbeSide::LaunchNothing(CudaStream stream) const {
  return spin_.Launch(stream, set_.get(), 0);
}

Status ProbeSide::Await(const GpuEvent& event) const {
  const auto end = ProbeClock::now() + kLimit;
  return device()->Within([&]() -> Status {
    for (int error = kCudaNotReady; error == kCudaNotReady;) {
      error = cuda().event_query(event.get());
      if (error != kCudaNotReady) {
        return FromCuda(cuda(), "cuEventQuery", error);
      }
      if (ProbeClock::now() > end) break;
    }
    return Aborted("a stream hangs");
  });
}

Status ProbeSide::Repeat(const std::function<void()>& fn,
                         const std::function<bool()>& ends) const {
  return device()->Within([&] {
    while (!ends()) fn();
    return Status::Ok();
  });
}

}  // namespace tf_hvd
