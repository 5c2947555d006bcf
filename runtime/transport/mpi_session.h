// MpiSession: MPI, initialised, with the communicators that tf_hvd made for
// itself. The only caller of MPI_Init and MPI_Finalize.
//
// All members are called on one thread at a time.
#ifndef TF_HVD_RUNTIME_TRANSPORT_MPI_SESSION_H_
#define TF_HVD_RUNTIME_TRANSPORT_MPI_SESSION_H_

#include <memory>
#include <string>

#include "runtime/status.h"
#include "runtime/transport/mpi_api.h"
#include "runtime/transport/mpi_library.h"

namespace tf_hvd {

// What the user may ask about the MPI that serves.
struct MpiInfo {
  std::string library;  // path
  std::string version;  // its own first line
  bool threads_multiple = false;
};

class MpiSession {
 public:
  // Initialises MPI, or joins the one that runs already. Fails if MPI does not
  // count as many ranks as the launcher. Collective.
  static Status Start(const MpiSearch& search,
                      std::unique_ptr<MpiSession>* session);

  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  const MpiApi& api() const { return library_.api; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  MpiHandle control() const { return control_; }  // edges, aborts, set-up
  MpiHandle data() const { return data_; }
  const MpiInfo& info() const { return info_; }

  // True if two threads may not take turns in calling MPI: it permits too
  // little, or it was started by somebody whose calls we cannot take turns
  // with.
  bool background_only() const { return background_only_; }

  // Collective. MPI_Finalize if Start has initialised MPI, else only what was
  // made here is given back.
  void Finalize();

 private:
  explicit MpiSession(const MpiLibrary& library) : library_(library) {}
  Status Initialise();
  Status CheckCount(const LaunchInfo& launch);
  Status MakeCommunicators();

  const MpiLibrary library_;
  MpiInfo info_;
  bool background_only_ = false;
  int rank_ = 0;
  int size_ = 1;
  MpiHandle control_{nullptr};
  MpiHandle data_{nullptr};
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_MPI_SESSION_H_
