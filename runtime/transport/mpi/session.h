// MpiSession: the initialised MPI, with the communicators that tf_hvd made. The
// only caller of MPI_Init and MPI_Finalize.
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

// Information for users about the MPI in use.
struct MpiInfo {
  std::string library;  // path
  std::string version;  // the first line of its version text
  bool threads_multiple = false;
  bool cuda_aware = false;  // according to MPI
};

// The processes that form the job; by default all of MPI_COMM_WORLD.
struct MpiMembers {
  // Ranks of MPI_COMM_WORLD, in the order of their ranks in the job.
  std::optional<std::vector<int>> ranks;
  // The Fortran handle of the communicator, of an MPI that is already running,
  // that has these ranks.
  std::optional<int> communicator;
};

class MpiSession {
 public:
  // Initialises MPI for any number of threads, or uses one that is already
  // running. Fails if MPI's number of ranks differs from the launcher's, if
  // MPI's thread level is too low, and on a process that is not a member.
  // Collective over the members; if this initialises MPI, across all ranks.
  static Status Start(const MpiSearch& search, const MpiMembers& members,
                      std::unique_ptr<MpiSession>* session);

  // Loads the MPI that Start would use, and queries its version; initialises
  // nothing.
  static Status Find(const MpiSearch& search, MpiInfo* info);

  // Finalizes an MPI that Start has initialised without a job being formed;
  // otherwise the launcher treats the process's exit as a failure.
  static void FinalizeLeftover();

  // A job has been formed: from now on only Finalize ends MPI, and an aborted
  // job never does.
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

  // Collective: gathers `bytes` of each rank, in the order of ranks.
  Status Gather(const void* mine, int bytes, void* all) const;

  // Collective. MPI_Finalize if Start has initialised MPI; otherwise only frees
  // the communicators made here.
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
  const bool owner_;  // this object must call MPI_Finalize
  MpiInfo info_;
  MpiThreads provided_ = MpiThreads::kSingle;
  int rank_ = 0;
  int size_ = 1;
  MpiHandle control_{nullptr};
  MpiHandle data_{nullptr};
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_MPI_SESSION_H_
