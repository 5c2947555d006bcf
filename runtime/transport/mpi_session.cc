#include "runtime/transport/mpi_session.h"

#include <vector>

#include "runtime/transport/mpi_error.h"

namespace tf_hvd {

Status MpiSession::Start(const MpiSearch& search,
                         std::unique_ptr<MpiSession>* result) {
  MpiLibrary library;
  TF_HVD_RETURN_IF_ERROR(OpenMpiLibrary(search, &library));
  std::unique_ptr<MpiSession> session(new MpiSession(library));
  TF_HVD_RETURN_IF_ERROR(session->Initialise());
  TF_HVD_RETURN_IF_ERROR(session->MakeCommunicators());
  TF_HVD_RETURN_IF_ERROR(session->CheckCount(search.launch));
  *result = std::move(session);
  return Status::Ok();
}

Status MpiSession::Initialise() {
  const MpiApi& mpi = library_.api;
  MpiThreads provided = MpiThreads::kSingle;
  if (library_.running) {
    TF_HVD_RETURN_IF_ERROR(MpiResult(mpi, "MPI_Query_thread",
                                     mpi.query_thread(mpi.state, &provided)));
    background_only_ = provided < MpiThreads::kMultiple;
  } else {
    int ended = 0;
    TF_HVD_RETURN_IF_ERROR(
        MpiResult(mpi, "MPI_Finalized", mpi.finalized(mpi.state, &ended)));
    if (ended != 0) {
      return FailedPrecondition(
          "MPI was finalized in this process and cannot start again: call "
          "init() once, or let mpi4py initialise MPI and finalize it at exit");
    }
    TF_HVD_RETURN_IF_ERROR(MpiResult(
        mpi, "MPI_Init_thread",
        mpi.init_thread(mpi.state, MpiThreads::kSerialized, &provided)));
    background_only_ = provided < MpiThreads::kSerialized;
  }
  std::vector<char> version(8192, '\0');
  TF_HVD_RETURN_IF_ERROR(
      MpiResult(mpi, "MPI_Get_library_version",
                mpi.library_version(mpi.state, version.data())));
  info_.version = version.data();
  info_.version = info_.version.substr(0, info_.version.find('\n'));
  info_.library = library_.path;
  info_.threads_multiple = provided == MpiThreads::kMultiple;
  return Status::Ok();
}

Status MpiSession::MakeCommunicators() {
  const MpiApi& mpi = library_.api;
  TF_HVD_RETURN_IF_ERROR(
      MpiResult(mpi, "MPI_Comm_dup", mpi.dup_world(mpi.state, &control_)));
  TF_HVD_RETURN_IF_ERROR(
      MpiResult(mpi, "MPI_Comm_dup", mpi.dup_world(mpi.state, &data_)));
  TF_HVD_RETURN_IF_ERROR(MpiResult(mpi, "MPI_Comm_rank",
                                   mpi.comm_rank(mpi.state, control_, &rank_)));
  return MpiResult(mpi, "MPI_Comm_size",
                   mpi.comm_size(mpi.state, control_, &size_));
}

Status MpiSession::CheckCount(const LaunchInfo& launch) {
  if (launch.family == LaunchInfo::Family::kNone || launch.size == size_) {
    return Status::Ok();
  }
  return FailedPrecondition(
      Describe(launch) + " says that this process is rank " +
      std::to_string(launch.rank) + " of " + std::to_string(launch.size) +
      ", but MPI counts " + std::to_string(size_) + " in " + library_.path +
      " (" + info_.version +
      "): the library does not belong to this launcher. " + MpiCure(launch));
}

void MpiSession::Finalize() {
  const MpiApi& mpi = library_.api;
  mpi.comm_free(mpi.state, &data_);
  mpi.comm_free(mpi.state, &control_);
  if (!library_.running) mpi.finalize(mpi.state);
}

}  // namespace tf_hvd
