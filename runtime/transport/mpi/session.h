// MpiSession: MPI, initialised, with the communicators that tf_hvd made for
// itself. The only caller of MPI_Init and MPI_Finalize.
//
// All members are called on one thread at a time.
#ifndef TF_HVD_RUNTIME_TRANSPORT_MPI_SESSION_H_
#define TF_HVD_RUNTIME_TRANSPORT_MPI_SESSION_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "runtime/transport/mpi_library/api.h"
#include "runtime/transport/mpi_library/library.h"

namespace tf_hvd {

// What the user may ask about the MPI that serves.
struct MpiInfo {
  std::string library;  // path
  std::string version;  // its own first line
  bool threads_multiple = false;
  bool cuda_aware = false;  // it says so
};

// Which processes form the job; by default all of MPI_COMM_WORLD.
struct MpiMembers {
  // Ranks of MPI_COMM_WORLD, in the order that they get in the job.
  std::optional<std::vector<int>> ranks;
  // The Fortran handle of a communicator of the MPI that runs already, whose
  // ranks they are.
  std::optional<int> communicator;
};

class MpiSession {
 public:
  // Initialises MPI for any number of threads, or joins the one that runs
  // already. Fails if MPI does not count as many ranks as the launcher, if it
  // lets too few threads call it, and on a process that is no member.
  // Collective over the members; where this initialises MPI, over all ranks.
  static Status Start(const MpiSearch& search, const MpiMembers& members,
                      std::unique_ptr<MpiSession>* session);

  // Opens the MPI that Start would, and asks its version; initialises nothing.
  static Status Find(const MpiSearch& search, MpiInfo* info);

  // Ends an MPI that a Start has initialised and of which no job has come:
  // without that, the launcher takes the process' exit for a failure.
  static void FinalizeLeftover();

  // A job has come of it: Finalize alone ends MPI, and nothing does where the
  // job is aborted.
  void MarkInUse();

  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  const MpiApi& api() const { return library_.api; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  MpiHandle control() const { return control_; }  // edges, aborts, set-up
  MpiHandle data() const { return data_; }
  const MpiInfo& info() const { return info_; }
  // True if Finalize ends MPI, which waits for all ranks.
  bool ends_mpi() const { return owner_; }

  // Collective: `bytes` of each rank, in the order of ranks.
  Status Gather(const void* mine, int bytes, void* all) const;

  // Collective. MPI_Finalize if Start has initialised MPI, else only what was
  // made here is given back.
  void Finalize();

 private:
  explicit MpiSession(const MpiLibrary& library)
      : library_(library), owner_(!library.running) {}
  Status Initialise(const LaunchInfo& launch);
  Status InitialiseOwn(const LaunchInfo& launch, MpiThreads* provided);
  Status Check(const LaunchInfo& launch, const MpiMembers& members);
  Status CheckCount(const LaunchInfo& launch, int count) const;
  Status CheckThreads() const;
  Status MakeCommunicators(const MpiMembers& members);

  const MpiLibrary library_;
  const bool owner_;  // MPI_Finalize is ours to call
  MpiInfo info_;
  MpiThreads provided_ = MpiThreads::kSingle;
  int rank_ = 0;
  int size_ = 1;
  MpiHandle control_{nullptr};
  MpiHandle data_{nullptr};
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_MPI_SESSION_H_
