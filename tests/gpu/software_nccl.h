// SoftwareNccl: NCCL on a SoftwareGpu's streams, between the devices of one
// process. It really reduces. Communicators do not block: they are ready, and
// their calls are on the streams, only some looks later. As of NCCL, ranks must
// make the same calls in the same order, for all of their communicators
// together; who does not is found, with the seed.
//
// One at a time in a process, on a machine that lives longer. Any thread.
#ifndef TF_HVD_TESTS_GPU_SOFTWARE_NCCL_H_
#define TF_HVD_TESTS_GPU_SOFTWARE_NCCL_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/transport/gpu/nccl_api.h"
#include "tests/gpu/software_gpu.h"

namespace tf_hvd {

class SoftwareNccl {
 public:
  explicit SoftwareNccl(SoftwareGpu* gpu);
  ~SoftwareNccl();

  SoftwareNccl(const SoftwareNccl&) = delete;
  SoftwareNccl& operator=(const SoftwareNccl&) = delete;

  // The table; valid as long as the process.
  static const NcclApi* Api();

  // From now on the communicators of a device tell this error when asked.
  void FailAsync(int device, int error);
  // ncclCommAbort of a device's communicators does not return before Release.
  void HangAborts(int device);
  void Release();
  // Aborts that were asked for.
  int aborts();
  // Communicators that were made and are still there.
  size_t communicators();

 private:
  friend struct SoftwareNcclCalls;

  struct Call {
    const char* name = "";
    const void* input = nullptr;
    void* output = nullptr;
    size_t count = 0;
    NcclNumber type = NcclNumber::kUint8;
    NcclReduction op = NcclReduction::kSum;
    int peer = 0;  // or root

    std::string Describe() const;
  };
  // One rank's part in what the ranks of a clique do together.
  struct Part {
    std::vector<Call> calls;
    CUstream_st* stream = nullptr;
    VectorClock clock;                       // when its stream had come to it
    std::vector<std::vector<char>> results;  // one for each call

    // What all ranks must have alike.
    std::string Describe() const;
  };
  struct Together {
    std::vector<Part> parts;  // by rank
    size_t arrived = 0;
    bool sound = true;  // nobody touches what must not be touched
    bool computed = false;
  };
  struct Clique {
    int number = 0;
    std::vector<int> devices;  // by rank; -1: has not come yet
    std::vector<Together> done_together;
  };

  friend struct ::ncclComm;

  Clique* FindClique(const NcclUniqueId& id, int ranks);
  void Launch(ncclComm* comm, std::vector<Call> calls, CUstream_st* stream);
  void Arrive(ncclComm* comm, size_t number);
  void Compute(Together* all);
  std::vector<char> Received(const Together& all, size_t rank, size_t i);
  std::vector<char> Result(const Together& all, size_t rank, size_t i) const;
  void Finish(ncclComm* comm, size_t number);
  void CheckOrder(ncclComm* comm, size_t number);
  bool Ready(const ncclComm& comm) const;

  SoftwareGpu* const gpu_;
  // All below: guarded by the machine's lock.
  int next_id_ = 0;
  std::map<int, std::unique_ptr<Clique>> cliques_;  // by id
  std::vector<std::unique_ptr<ncclComm>> comms_;
  std::map<int, std::vector<std::pair<Clique*, size_t>>>
      launched_;                 // by device
  std::map<int, int> failing_;   // by device
  std::map<int, bool> hanging_;  // by device
  int aborts_ = 0;
};

}  // namespace tf_hvd

// What NCCL's handle points to: one rank's side of a clique.
struct ncclComm {
  tf_hvd::SoftwareNccl::Clique* clique = nullptr;
  int rank = 0;
  int device = 0;
  int looks_left = 0;  // until what was called is under way
  bool aborted = false;
  bool gone = false;
  std::vector<tf_hvd::SoftwareNccl::Call> waiting;  // to be launched then
  CUstream_st* waiting_on = nullptr;
  size_t launches = 0;
};

#endif  // TF_HVD_TESTS_GPU_SOFTWARE_NCCL_H_
