// SoftwareGpu: a machine with GPUs that are not there. It fills the tables of
// CUDA's and NCCL's functions (cuda_api.h, nccl_api.h) with functions that work
// on the host's memory, so that all but the device code runs, and is checked,
// where there is no GPU.
//
// Streams run late: what is put on them happens during some later call, in an
// order that a seed decides, never before what it has to wait for. Memory of a
// device cannot be touched but from a stream. Each access is checked against
// all others (access_log.h); so is the order in which ranks put NCCL's calls on
// their streams. What is wrong is kept, and told with the seed.
//
// One machine at a time in a process: the functions of the tables have no
// argument that could tell which. Any thread: one lock guards all of it.
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

// What the driver's handles point to.
struct CUctx_st {
  int device = 0;
};

namespace tf_hvd {

// The outcome of a record: what waits keeps it, whatever becomes of the event.
struct SoftwareRecord {
  bool done = false;
  VectorClock clock;
  std::chrono::steady_clock::time_point when;  // it was done
};

}  // namespace tf_hvd

struct CUevent_st {
  std::shared_ptr<tf_hvd::SoftwareRecord> last;  // null: never recorded
};

namespace tf_hvd {

// Something on a stream.
struct SoftwareWork {
  std::string what;
  // Whether it can be done now; null: yes.
  std::function<bool()> ready;
  // Does it. The stream's clock says what has happened before.
  std::function<void(CUstream_st* stream)> run;
  VectorClock host;     // what the host knew when it put this on the stream
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
  // What has been put on streams. counted_calls.h counts by function.
  struct Counts {
    int64_t launches = 0;  // kernels
    int64_t copies = 0;
  };

  // Something that a stream has done.
  struct Done {
    std::string what;
    int device = 0;
    int actor = 0;  // the stream
    uint64_t time = 0;
    VectorClock clock;  // what was known to have happened before
  };

  SoftwareGpu(int devices, uint64_t seed);
  ~SoftwareGpu();

  SoftwareGpu(const SoftwareGpu&) = delete;
  SoftwareGpu& operator=(const SoftwareGpu&) = delete;

  // The table; valid as long as the process.
  static const CudaApi* Cuda();
  // The machine that the functions of the tables work on.
  static SoftwareGpu& Get();

  // What was found to be wrong; with the seed.
  std::vector<std::string> Faults();
  Counts counts();
  // From now on what streams do is written down.
  void Trace() { traces_ = true; }
  std::vector<Done> Traced();

  // Of a device: as if TensorFlow had made them. Null memory: none is left.
  CudaStream NewStream(int device);
  char* NewMemory(int device, size_t bytes, const std::string& name);
  void FreeMemory(void* memory);
  // Lets go of it when the stream has come so far.
  void FreeOn(CudaStream stream, void* memory);
  void Copy(CudaStream stream, void* to, const void* from, size_t bytes);
  // Puts the writing of `bytes` on a stream, as a kernel of TensorFlow's would.
  void Write(CudaStream stream, void* to, std::vector<char> bytes);
  // Reads on a stream; the bytes are there when it has gone so far.
  std::shared_ptr<std::vector<char>> Read(CudaStream stream, const void* from,
                                          size_t bytes);
  // Lets all streams go as far as they can.
  void Settle();
  // False for memory of a device.
  bool IsOfHost(const void* memory) const;
  // The next allocation of a device's memory fails.
  void FailAllocation() { fail_allocation_ = true; }
  // From now on code of the host may touch all memory, as a CUDA-aware MPI
  // does. Whether it does so too early, only the values tell.
  void LetHostIn();

  // For software_nccl.cc and software_function.cc: the lock is held in all of
  // these.
  std::mutex& mutex() { return mutex_; }
  void Put(CUstream_st* stream, SoftwareWork work);
  // False, and a fault, if nobody may touch it: then it must not be.
  bool Touch(CUstream_st* stream, const void* memory, size_t bytes, bool writes,
             const std::string& what);
  void Fault(const std::string& text);
  // A number from 0 to below `below`.
  uint64_t Draw(uint64_t below) { return random_() % below; }
  // Does some of what can be done, or nothing.
  void Advance();
  // Makes all memory of devices accessible, at least while `fn` runs.
  void WithMemory(const std::function<void()>& fn);
  VectorClock& HostOf(int device) { return hosts_[device]; }
  int CurrentDevice() const;

 private:
  friend struct SoftwareCuda;

  bool Step();
  // As many of them as there are, but no more than `most`.
  void Steps(uint64_t most);
  void Free(uintptr_t at);
  void GiveBack(uintptr_t at, size_t bytes);
  bool Runnable(const CUstream_st& stream) const;

  const uint64_t seed_;
  const int devices_;
  std::mutex mutex_;
  // All below: guarded by mutex_.
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
  // All devices' memory: an address range that nobody may touch, unless the
  // host was let in.
  char* arena_ = nullptr;
  bool host_is_in_ = false;
  std::map<uintptr_t, size_t> used_;  // of the arena
  std::map<void*, std::unique_ptr<char[]>> pinned_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_SOFTWARE_GPU_H_
