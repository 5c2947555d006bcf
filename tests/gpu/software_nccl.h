// SoftwareNccl: NCCL on a SoftwareGpu's streams, between the devices of one
// process or, with a board of files, of several. It computes real results.
// Communicators do not block: they are ready, and their calls are on the
// streams, only after some queries. As in NCCL, ranks must make the same calls
// in the same order across all of their communicators. Violations are reported
// with the seed; between processes only different calls are detected.
//
// One at a time in a process, on a machine that outlives it. Any thread.
#ifndef TF_HVD_TESTS_GPU_SOFTWARE_NCCL_H_
#define TF_HVD_TESTS_GPU_SOFTWARE_NCCL_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/transport/gpu/nccl_api.h"
#include "tests/gpu/nccl_board.h"
#include "tests/gpu/nccl_part.h"
#include "tests/gpu/software_gpu.h"

namespace tf_hvd {

class SoftwareNccl {
 public:
  explicit SoftwareNccl(SoftwareGpu* gpu, std::unique_ptr<NcclBoard> board =
                                              std::make_unique<MemoryBoard>());
  ~SoftwareNccl();

  SoftwareNccl(const SoftwareNccl&) = delete;
  SoftwareNccl& operator=(const SoftwareNccl&) = delete;

  // The table; valid as long as the process.
  static const NcclApi* Api();

  // From now on the communicators of a device report this error when queried.
  void FailAsync(int device, int error);
  // ncclCommAbort of a device's communicators does not return before Release,
  // which waits for the aborts.
  void HangAborts(int device);
  void Release();
  // Number of requested aborts.
  int aborts();
  // Number of launches of calls, over all devices.
  size_t launches();
  // Number of communicators that exist.
  size_t communicators();

 private:
  friend struct SoftwareNcclCalls;
  friend struct ::ncclComm;

  struct Call {
    NcclRequest request;
    const void* input = nullptr;
    void* output = nullptr;
  };
  // All ranks of a communicator.
  struct Clique {
    std::string name;
    size_t ranks = 0;
    std::set<int> devices;  // those of this process
  };

  Clique* FindClique(const NcclUniqueId& id, int ranks);
  void Launch(ncclComm* comm, std::vector<Call> calls, CUstream_st* stream);
  void Arrive(ncclComm* comm, size_t number, const std::vector<Call>& calls,
              CUstream_st* stream);
  void Finish(ncclComm* comm, size_t number, const std::vector<Call>& calls,
              CUstream_st* stream);
  void CheckOrder(ncclComm* comm, size_t number);
  bool Ready(ncclComm* comm);
  // Key of a rank's part in a launch; without a number, key of its existence.
  static std::string KeyOf(const ncclComm& comm, size_t rank,
                           const std::string& number);
  bool AllPosted(const ncclComm& comm, const std::string& number);

  SoftwareGpu* const gpu_;
  // Guarded by the machine's lock:
  const std::unique_ptr<NcclBoard> board_;
  int next_id_ = 0;
  std::map<std::string, std::unique_ptr<Clique>> cliques_;
  std::vector<std::unique_ptr<ncclComm>> comms_;
  // When streams of this process reached their parts, by key.
  std::map<std::string, VectorClock> clocks_;
  std::map<int, std::vector<std::pair<Clique*, size_t>>>
      launched_;                 // by device
  std::map<int, int> failing_;   // by device
  std::map<int, bool> hanging_;  // by device
  int aborts_ = 0;
  int aborting_ = 0;
};

}  // namespace tf_hvd

// The object behind NCCL's handle: one rank's side of a clique.
struct ncclComm {
  tf_hvd::SoftwareNccl::Clique* clique = nullptr;
  int rank = 0;
  int device = 0;
  int looks_left = 0;  // until the call is in progress
  bool blocking = false;
  bool all_here = false;
  bool aborted = false;
  bool gone = false;
  std::vector<tf_hvd::SoftwareNccl::Call> waiting;  // to be launched then
  CUstream_st* waiting_on = nullptr;
  size_t launches = 0;
};

#endif  // TF_HVD_TESTS_GPU_SOFTWARE_NCCL_H_
