// SoftwareGpu: a machine with simulated GPUs. It fills the tables of CUDA's and
// NCCL's functions (cuda_api.h, nccl_api.h) with functions that work on the
// host's memory. Everything except the device code can thus run, and be
// checked, without a GPU.
//
// Streams run late: their work happens during some later call, in an order that
// a seed decides, but never before the work that it must wait for. Device
// memory can be accessed only from a stream. Each access is checked against all
// others (access_log.h), and so is the order in which ranks enqueue NCCL's
// calls on their streams. Faults are kept, and reported with the seed.
//
// Only one machine at a time in a process: the functions of the tables have no
// argument for it. Any thread: one lock guards everything.
#ifndef TF_HVD_TESTS_GPU_SOFTWARE_GPU_H_
#define TF_HVD_TESTS_GPU_SOFTWARE_GPU_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "runtime/transport/gpu/cuda_api.h"
#include "tests/gpu/access_log.h"
#include "tests/gpu/software_function.h"

// The objects behind the driver's handles.
struct CUctx_st {
  int device = 0;
};

namespace tf_hvd {

// The result of a record: waiting work keeps it, even if the event is
// destroyed.
struct SoftwareRecord {
  bool done = false;
  VectorClock clock;
  std::chrono::steady_clock::time_point when;  // time of completion
};

}  // namespace tf_hvd

struct CUevent_st {
  std::shared_ptr<tf_hvd::SoftwareRecord> last;  // null: never recorded
};

namespace tf_hvd {

// A piece of work on a stream.
struct SoftwareWork {
  std::string what;
  // Whether it can be done now; null: yes.
  std::function<bool()> ready;
  // Does the work. The stream's clock has the events that happened before.
  std::function<void(CUstream_st* stream)> run;
  VectorClock host;     // the host's clock when it enqueued this
  bool touches = true;  // memory
};

}  // namespace tf_hvd

struct CUstream_st {
  int device = 0;
  int actor = 0;
  std::deque<tf_hvd::SoftwareWork> queue;
  tf_hvd::VectorClock clock;
};

namespace tf_hvd {

class SoftwareGpu {
 public:
  // Counts of work enqueued on streams. counted_calls.h counts by function.
  struct Counts {
    int64_t launches = 0;  // kernels
    int64_t copies = 0;
  };

  // A completed piece of a stream's work.
  struct Done {
    std::string what;
    int device = 0;
    int actor = 0;  // the stream
    uint64_t time = 0;
    VectorClock clock;  // clock of the events known to have happened before
  };

  SoftwareGpu(int devices, uint64_t seed);
  ~SoftwareGpu();

  SoftwareGpu(const SoftwareGpu&) = delete;
  SoftwareGpu& operator=(const SoftwareGpu&) = delete;

  // The table; valid as long as the process.
  static const CudaApi* Cuda();
  // The machine that the functions of the tables use.
  static SoftwareGpu& Get();

  // The faults that were found, with the seed.
  std::vector<std::string> Faults();
  Counts counts();
  // From now on the streams' work is recorded.
  void Trace() { traces_ = true; }
  std::vector<Done> Traced();

  // A device's stream and memory, as if TensorFlow had made them. Null memory:
  // none is left.
  CudaStream NewStream(int device);
  char* NewMemory(int device, size_t bytes, const std::string& name);
  void FreeMemory(void* memory);
  // Releases the memory at this point of the stream.
  void FreeOn(CudaStream stream, void* memory);
  void Copy(CudaStream stream, void* to, const void* from, size_t bytes);
  // Enqueues a write of `bytes` on a stream, as a kernel of TensorFlow would.
  void Write(CudaStream stream, void* to, std::vector<char> bytes);
  // Enqueues a read on a stream; the bytes are valid once the stream gets
  // there.
  std::shared_ptr<std::vector<char>> Read(CudaStream stream, const void* from,
                                          size_t bytes);
  // Lets all streams run as far as they can.
  void Settle();
  // False for device memory.
  bool IsOfHost(const void* memory) const;
  // The next allocation of device memory fails.
  void FailAllocation() { fail_allocation_ = true; }
  // From now on host code may access all memory, as a CUDA-aware MPI does. Only
  // the values show whether it does so too early.
  void LetHostIn();

  // For software_nccl.cc and software_function.cc: call all of these with the
  // lock held.
  std::mutex& mutex() { return mutex_; }
  void Put(CUstream_st* stream, SoftwareWork work);
  // Returns false and records a fault if the access is not allowed: do not make
  // it then.
  bool Touch(CUstream_st* stream, const void* memory, size_t bytes, bool writes,
             const std::string& what);
  void Fault(const std::string& text);
  // A number from 0 to `below` - 1.
  uint64_t Draw(uint64_t below) { return random_() % below; }
  // Does some of the possible work, or nothing.
  void Advance();
  // Makes all device memory accessible, at least while `fn` runs.
  void WithMemory(const std::function<void()>& fn);
  VectorClock& HostOf(int device) { return hosts_[device]; }
  int CurrentDevice() const;

 private:
  friend struct SoftwareCuda;

  bool Step();
  // Number of devices, but no more than `most`.
  void Steps(uint64_t most);
  void Free(uintptr_t at);
  void GiveBack(uintptr_t at, size_t bytes);
  bool Runnable(const CUstream_st& stream) const;

  const uint64_t seed_;
  const int devices_;
  std::mutex mutex_;
  // Guarded by mutex_:
  std::mt19937_64 random_;
  std::vector<CUctx_st> contexts_;
  std::map<int, VectorClock> hosts_;  // by device: one process for each
  std::vector<std::unique_ptr<CUstream_st>> streams_;
  std::map<CUevent_st*, std::unique_ptr<CUevent_st>> events_;
  AccessLog log_;
  std::vector<std::string> faults_;
  Counts counts_;
  std::vector<Done> traced_;
  std::atomic<bool> traces_{false};           // not guarded
  std::atomic<bool> fail_allocation_{false};  // not guarded
  // Memory of all devices: an address range without access, unless the host was
  // admitted.
  char* arena_ = nullptr;
  bool host_is_in_ = false;
  std::map<uintptr_t, size_t> used_;  // used parts of the arena
  std::map<void*, std::unique_ptr<char[]>> pinned_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_SOFTWARE_GPU_H_
