#include "tests/gpu/software_gpu.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <limits>
#include <utility>

namespace tf_hvd {
namespace {

constexpr size_t kArenaBytes = size_t{1} << 30;
constexpr size_t kAlignment = 256;  // alignment of cuMemAlloc

SoftwareGpu* machine = nullptr;

}  // namespace

SoftwareGpu::SoftwareGpu(int devices, uint64_t seed)
    : seed_(seed), devices_(devices), random_(seed) {
  assert(machine == nullptr);
  machine = this;
  for (int device = 0; device < devices; ++device) {
    contexts_.push_back({device});
    hosts_[device];
  }
  arena_ = static_cast<char*>(mmap(nullptr, kArenaBytes, PROT_NONE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                                   -1, 0));
  assert(arena_ != MAP_FAILED);
}

SoftwareGpu::~SoftwareGpu() {
  munmap(arena_, kArenaBytes);
  machine = nullptr;
}

SoftwareGpu& SoftwareGpu::Get() {
  assert(machine != nullptr);
  return *machine;
}

std::vector<std::string> SoftwareGpu::Faults() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return faults_;
}

SoftwareGpu::Counts SoftwareGpu::counts() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counts_;
}

std::vector<SoftwareGpu::Done> SoftwareGpu::Traced() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return traced_;
}

void SoftwareGpu::Fault(const std::string& text) {
  faults_.push_back("seed " + std::to_string(seed_) + ": " + text);
}

void SoftwareGpu::Put(CUstream_st* stream, SoftwareWork work) {
  work.host = hosts_[stream->device];
  stream->queue.push_back(std::move(work));
}

bool SoftwareGpu::Touch(CUstream_st* stream, const void* memory, size_t bytes,
                        bool writes, const std::string& what) {
  const std::string wrong = log_.Touch(
      reinterpret_cast<uintptr_t>(memory), bytes, writes,
      {stream->actor, stream->clock.of(stream->actor), what}, stream->clock);
  if (!wrong.empty()) Fault(wrong);
  return wrong.empty();
}

bool SoftwareGpu::Runnable(const CUstream_st& stream) const {
  return !stream.queue.empty() && (stream.queue.front().ready == nullptr ||
                                   stream.queue.front().ready());
}

bool SoftwareGpu::Step() {
  std::vector<CUstream_st*> runnable;
  for (const auto& stream : streams_) {
    if (Runnable(*stream)) runnable.push_back(stream.get());
  }
  if (runnable.empty()) return false;
  CUstream_st* const stream = runnable[Draw(runnable.size())];
  SoftwareWork work = std::move(stream->queue.front());
  stream->queue.pop_front();
  stream->clock.Join(work.host);
  stream->clock.Tick(stream->actor);
  work.run(stream);
  if (traces_) {
    traced_.push_back({work.what, stream->device, stream->actor,
                       stream->clock.of(stream->actor), stream->clock});
  }
  return true;
}

// The memory is made accessible once for all of them, because that takes time.
void SoftwareGpu::Steps(uint64_t most) {
  const bool any =
      std::any_of(streams_.begin(), streams_.end(),
                  [this](const auto& stream) { return Runnable(*stream); });
  if (most == 0 || !any) return;
  WithMemory([&] {
    for (uint64_t left = most; left > 0 && Step(); --left) {
    }
  });
}

void SoftwareGpu::Advance() { Steps(Draw(4)); }

void SoftwareGpu::Settle() {
  const std::lock_guard<std::mutex> lock(mutex_);
  Steps(std::numeric_limits<uint64_t>::max());
}

void SoftwareGpu::WithMemory(const std::function<void()>& fn) {
  if (host_is_in_) return fn();
  mprotect(arena_, kArenaBytes, PROT_READ | PROT_WRITE);
  fn();
  mprotect(arena_, kArenaBytes, PROT_NONE);
}

void SoftwareGpu::LetHostIn() {
  const std::lock_guard<std::mutex> lock(mutex_);
  mprotect(arena_, kArenaBytes, PROT_READ | PROT_WRITE);
  host_is_in_ = true;
}

CudaStream SoftwareGpu::NewStream(int device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  streams_.push_back(std::make_unique<CUstream_st>());
  CUstream_st* const stream = streams_.back().get();
  stream->device = device;
  stream->actor = static_cast<int>(streams_.size());
  return stream;
}

char* SoftwareGpu::NewMemory(int, size_t bytes, const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const size_t room =
      (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  auto at = reinterpret_cast<uintptr_t>(arena_);
  for (const auto& [begin, taken] : used_) {
    if (begin - at >= room) break;
    at = begin + taken;
  }
  if (at + room > reinterpret_cast<uintptr_t>(arena_) + kArenaBytes) {
    return nullptr;
  }
  used_[at] = room;
  log_.Add(at, room, name);
  return reinterpret_cast<char*>(at);
}

void SoftwareGpu::Free(uintptr_t at) {
  if (!log_.Has(at)) return Fault("memory is freed that does not exist");
  log_.Remove(at);
  GiveBack(at, used_[at]);
  used_.erase(at);
}

// The time to change access to memory grows with its size.
void SoftwareGpu::GiveBack(uintptr_t at, size_t bytes) {
  const auto page = static_cast<uintptr_t>(getpagesize());
  const uintptr_t begin = (at + page - 1) / page * page;
  const uintptr_t end = (at + bytes) / page * page;
  if (begin >= end) return;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

void SoftwareGpu::FreeMemory(void* memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Free(reinterpret_cast<uintptr_t>(memory));
}

void SoftwareGpu::FreeOn(CudaStream stream, void* memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto at = reinterpret_cast<uintptr_t>(memory);
  Put(stream, {"a free",
               nullptr,
               [this, at, memory](CUstream_st* of) {
                 Touch(of, memory, used_[at], true, "the free");
                 Free(at);
               },
               {}});
}

void SoftwareGpu::Copy(CudaStream stream, void* to, const void* from,
                       size_t bytes) {
  Cuda()->memcpy_async(reinterpret_cast<CudaPointer>(to),
                       reinterpret_cast<CudaPointer>(from), bytes, stream);
}

void SoftwareGpu::Write(CudaStream stream, void* to, std::vector<char> bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Put(stream, {"a kernel",
               nullptr,
               [this, to, bytes = std::move(bytes)](CUstream_st* of) {
                 if (!Touch(of, to, bytes.size(), true, "a kernel")) return;
                 std::copy(bytes.begin(), bytes.end(), static_cast<char*>(to));
               },
               {}});
}

std::shared_ptr<std::vector<char>> SoftwareGpu::Read(CudaStream stream,
                                                     const void* from,
                                                     size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto result = std::make_shared<std::vector<char>>();
  Put(stream, {"a kernel",
               nullptr,
               [this, from, bytes, result](CUstream_st* of) {
                 if (!Touch(of, from, bytes, false, "a kernel")) return;
                 const auto* const begin = static_cast<const char*>(from);
                 result->assign(begin, begin + bytes);
               },
               {}});
  return result;
}

bool SoftwareGpu::IsOfHost(const void* memory) const {
  const auto* const at = static_cast<const char*>(memory);
  return at < arena_ || at >= arena_ + kArenaBytes;
}

}  // namespace tf_hvd
