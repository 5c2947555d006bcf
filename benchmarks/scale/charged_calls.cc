#include "benchmarks/scale/charged_calls.h"

#include <sys/mman.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "benchmarks/scale/virtual_time.h"
#include "compute/buffer_ops.h"

namespace tf_hvd::scale {
namespace {

// One range of addresses, so that two comparisons tell whether an address is in
// it.
constexpr size_t kNowhereBytes = size_t{16} << 40;
constexpr size_t kPage = 4096;

CoreCosts the_costs;

uintptr_t Nowhere() {
  static const uintptr_t base = [] {
    void* const memory =
        mmap(nullptr, kNowhereBytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      std::perror("addresses for the tensors");
      std::exit(1);
    }
    return reinterpret_cast<uintptr_t>(memory);
  }();
  return base;
}

bool IsNowhere(const void* address) {
  return reinterpret_cast<uintptr_t>(address) - Nowhere() < kNowhereBytes;
}

bool ChargeCopy(const void* to, const void* from, size_t bytes) {
  if (!IsNowhere(to) && !IsNowhere(from)) return false;
  VirtualTime* const time = VirtualTime::current();
  if (time == nullptr) return false;
  time->Charge(the_costs.call_ns +
               the_costs.copy_byte_ns * static_cast<double>(bytes));
  return true;
}

}  // namespace

void SetCoreCosts(const CoreCosts& costs) { the_costs = costs; }

char* ReserveAddresses(size_t bytes) {
  static size_t used = 0;
  char* const given = reinterpret_cast<char*>(Nowhere()) + used;
  used += (bytes + kPage - 1) / kPage * kPage;
  if (used > kNowhereBytes) {
    std::fprintf(stderr, "too many tensors to simulate\n");
    std::exit(1);
  }
  return given;
}

void BackWithMemory(char* reserved, size_t bytes) {
  if (mprotect(reserved, bytes, PROT_READ | PROT_WRITE) != 0) {
    std::perror("the lines of a node");
    std::exit(1);
  }
}

}  // namespace tf_hvd::scale

extern "C" {

void* __real_memcpy(void* to, const void* from, size_t bytes);
void* __real_memmove(void* to, const void* from, size_t bytes);
void* __real_memset(void* to, int value, size_t bytes);
int64_t __real__ZNSt6chrono3_V212steady_clock3nowEv();

void* __wrap_memcpy(void* to, const void* from, size_t bytes) {
  if (tf_hvd::scale::ChargeCopy(to, from, bytes)) return to;
  return __real_memcpy(to, from, bytes);
}

void* __wrap_memmove(void* to, const void* from, size_t bytes) {
  if (tf_hvd::scale::ChargeCopy(to, from, bytes)) return to;
  return __real_memmove(to, from, bytes);
}

void* __wrap_memset(void* to, int value, size_t bytes) {
  if (tf_hvd::scale::ChargeCopy(to, to, bytes)) return to;
  return __real_memset(to, value, bytes);
}

// std::chrono::steady_clock::now(); a time point has a single number.
int64_t __wrap__ZNSt6chrono3_V212steady_clock3nowEv() {
  const auto* const time = tf_hvd::scale::VirtualTime::current();
  if (time != nullptr) return time->now();
  return __real__ZNSt6chrono3_V212steady_clock3nowEv();
}

}  // extern "C"

namespace tf_hvd {

// tf_hvd::ReduceInputs, a C++ function wrapped by its mangled name.
void RealReduce(const ReduceOptions& options, const std::vector<const void*>& inputs, int64_t count, void* output, void* copy, Stores stores) asm(
    "__real__ZN6tf_hvd12ReduceInputsERKNS_13ReduceOptionsERKSt6vectorIPKvSaIS5_"
    "EElPvSA_NS_6StoresE");
void ChargedReduce(const ReduceOptions& options, const std::vector<const void*>& inputs, int64_t count, void* output, void* copy, Stores stores) asm(
    "__wrap__ZN6tf_hvd12ReduceInputsERKNS_13ReduceOptionsERKSt6vectorIPKvSaIS5_"
    "EElPvSA_NS_6StoresE");

void ChargedReduce(const ReduceOptions& options,
                   const std::vector<const void*>& inputs, int64_t count,
                   void* output, void* copy, Stores stores) {
  scale::VirtualTime* const time = scale::VirtualTime::current();
  if (time == nullptr) {
    return RealReduce(options, inputs, count, output, copy, stores);
  }
  const double bytes =
      static_cast<double>(count) * static_cast<double>(SizeOf(options.dtype));
  const auto streams =
      static_cast<double>(inputs.size()) + (copy == nullptr ? 0.0 : 1.0);
  time->Charge(scale::the_costs.call_ns +
               scale::the_costs.reduce_byte_ns * bytes * streams);
}

}  // namespace tf_hvd
