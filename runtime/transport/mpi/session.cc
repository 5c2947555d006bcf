#include "runtime/transport/mpi/session.h"

#include <algorithm>
#include <utility>

#include "base/config.h"
#include "runtime/transport/mpi_library/library.h"

namespace tf_hvd {
namespace {

// An MPI that tf_hvd has initialised and not finalized. `in_use`: a job was
// formed. Guarded by the caller of Start, as is everything here.
struct OwnMpi {
  MpiLibrary library;
  bool in_use = false;
};

std::optional<OwnMpi>& Own() {
  static auto* const own = new std::optional<OwnMpi>;
  return *own;
}

const char* NameOf(MpiThreads level) {
  switch (level) {
    case MpiThreads::kSingle:
      return "MPI_THREAD_SINGLE";
    case MpiThreads::kFunneled:
      return "MPI_THREAD_FUNNELED";
    case MpiThreads::kSerialized:
      return "MPI_THREAD_SERIALIZED";
    case MpiThreads::kMultiple:
      break;
  }
  return "MPI_THREAD_MULTIPLE";
}

std::string ListOf(const std::vector<int>& ranks) {
  std::string text = "[";
  for (const int rank : ranks) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(rank);
  }
  return text + "]";
}

// Called for `rank` of `count`, which passes these ranks of MPI_COMM_WORLD to
// init.
Status CheckRanks(const std::vector<int>& ranks, int rank, int count) {
  const std::string call = "init(comm=" + ListOf(ranks) + ")";
  for (const int member : ranks) {
    if (member >= 0 && member < count) continue;
    return InvalidArgument(call + " names rank " + std::to_string(member) +
                           ", but MPI_COMM_WORLD has the ranks 0 to " +
                           std::to_string(count - 1) +
                           "; pass ranks of that range");
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (std::count(ranks.begin(), ranks.end(), ranks[i]) == 1) continue;
    return InvalidArgument(call + " names rank " + std::to_string(ranks[i]) +
                           " more than once; pass each rank once");
  }
  if (std::count(ranks.begin(), ranks.end(), rank) == 1) return Status::Ok();
  return InvalidArgument(
      call + " was called by rank " + std::to_string(rank) +
      " of MPI_COMM_WORLD, which is not in the list; add this rank to the "
      "list, or pass a separate list with this rank to make another job");
}

Status AskVersion(const MpiLibrary& library, MpiInfo* info) {
  std::vector<char> version(8192, '\0');
  TF_HVD_RETURN_IF_ERROR(MpiResult(
      library.api, "MPI_Get_library_version",
      library.api.library_version(library.api.state, version.data())));
  info->version = version.data();
  info->version = info->version.substr(0, info->version.find('\n'));
  info->library = library.path;
  return Status::Ok();
}

}  // namespace

Status MpiSession::Find(const MpiSearch& search, MpiInfo* info) {
  MpiLibrary library;
  TF_HVD_RETURN_IF_ERROR(OpenMpiLibrary(search, &library));
  return AskVersion(library, info);
}

Status MpiSession::Start(const MpiSearch& search, const MpiMembers& members,
                         std::unique_ptr<MpiSession>* result) {
  MpiLibrary library;
  if (Own().has_value()) {
    library = Own()->library;
  } else {
    TF_HVD_RETURN_IF_ERROR(OpenMpiLibrary(search, &library));
  }
  std::unique_ptr<MpiSession> session(new MpiSession(library));
  TF_HVD_RETURN_IF_ERROR(session->Initialise(search.launch));
  TF_HVD_RETURN_IF_ERROR(session->Check(search.launch, members));
  TF_HVD_RETURN_IF_ERROR(session->MakeCommunicators(members));
  *result = std::move(session);
  return Status::Ok();
}

void MpiSession::MarkInUse() {
  if (owner_) Own()->in_use = true;
}

void MpiSession::FinalizeLeftover() {
  if (!Own().has_value() || Own()->in_use) return;
  const MpiApi api = Own()->library.api;
  Own().reset();
  api.finalize(api.state);
}

// From here on MPI runs, and stays initialised after errors: a later call may
// be valid, and MPI cannot start twice.
Status MpiSession::InitialiseOwn(const LaunchInfo& launch,
                                 MpiThreads* provided) {
  const MpiApi& mpi = library_.api;
  int ended = 0;
  TF_HVD_RETURN_IF_ERROR(
      MpiResult(mpi, "MPI_Finalized", mpi.finalized(mpi.state, &ended)));
  if (ended != 0) {
    return FailedPrecondition(
        "MPI was finalized in this process and cannot start again: call "
        "init() once, or let mpi4py initialise MPI and finalize it at exit");
  }
  if (launch.slurm_pmi && library_.family == MpiFamily::kMpich) {
    PreferLibfabricInMpich();
  }
  if (library_.family == MpiFamily::kOpenMpi) SendByTcpInOpenMpi();
  // tf_hvd's threads never call MPI concurrently, but the script's threads may.
  TF_HVD_RETURN_IF_ERROR(
      MpiResult(mpi, "MPI_Init_thread",
                mpi.init_thread(mpi.state, MpiThreads::kMultiple, provided)));
  Own() = OwnMpi{library_};
  return Status::Ok();
}

Status MpiSession::Initialise(const LaunchInfo& launch) {
  const MpiApi& mpi = library_.api;
  if (library_.running || Own().has_value()) {
    TF_HVD_RETURN_IF_ERROR(MpiResult(mpi, "MPI_Query_thread",
                                     mpi.query_thread(mpi.state, &provided_)));
  } else {
    TF_HVD_RETURN_IF_ERROR(InitialiseOwn(launch, &provided_));
  }
  TF_HVD_RETURN_IF_ERROR(AskVersion(library_, &info_));
  info_.threads_multiple = provided_ == MpiThreads::kMultiple;
  info_.cuda_aware = mpi.cuda_aware(mpi.state) != 0;
  return Status::Ok();
}

// Checks that need no other process: no rank waits for one that fails here.
Status MpiSession::Check(const LaunchInfo& launch, const MpiMembers& members) {
  const MpiApi& mpi = library_.api;
  int count = 0;
  int rank = 0;
  TF_HVD_RETURN_IF_ERROR(MpiResult(
      mpi, "MPI_Comm_size", mpi.comm_size(mpi.state, mpi.world, &count)));
  TF_HVD_RETURN_IF_ERROR(MpiResult(mpi, "MPI_Comm_rank",
                                   mpi.comm_rank(mpi.state, mpi.world, &rank)));
  TF_HVD_RETURN_IF_ERROR(CheckCount(launch, count));
  // A single process sends nothing.
  if (count > 1) TF_HVD_RETURN_IF_ERROR(CheckThreads());
  if (members.communicator.has_value()) {
    if (!owner_) return Status::Ok();
    return InvalidArgument(
        "init(comm=<communicator of mpi4py>): " + library_.path +
        ", the MPI that tf_hvd found, is not the one that runs in this "
        "process; set TF_HVD_MPI_LIBRARY to the path of the libmpi that mpi4py "
        "uses");
  }
  return members.ranks.has_value() ? CheckRanks(*members.ranks, rank, count)
                                   : Status::Ok();
}

// tf_hvd calls MPI on the submitting thread and on its background thread, but
// never concurrently. If the program has initialised MPI, it may call MPI at
// any time.
Status MpiSession::CheckThreads() const {
  if (owner_ && provided_ < MpiThreads::kSerialized) {
    return FailedPrecondition(
        library_.path + " (" + info_.version + ") provides " +
        NameOf(provided_) +
        " at most, so only one thread may call it, but tf_hvd calls MPI on "
        "several threads. Use an MPI that was built with support for threads.");
  }
  if (owner_ || provided_ == MpiThreads::kMultiple) return Status::Ok();
  return FailedPrecondition(
      std::string("MPI was initialised before init(), with ") +
      NameOf(provided_) +
      ": tf_hvd calls MPI on its own threads, at any time, which requires "
      "MPI_THREAD_MULTIPLE. Call hvd.init() before MPI is initialised (before "
      "'from mpi4py import MPI'), or put 'import mpi4py; "
      "mpi4py.rc.thread_level = \"multiple\"' (and no mpi4py.rc.threads = "
      "False) before that import.");
}

Status MpiSession::CheckCount(const LaunchInfo& launch, int count) const {
  if (launch.family == LaunchInfo::Family::kNone || launch.size == count) {
    return Status::Ok();
  }
  return FailedPrecondition(
      Describe(launch) + " says that this process is rank " +
      std::to_string(launch.rank) + " of " + std::to_string(launch.size) +
      ", but the world size is " + std::to_string(count) +
      " in MPI's library " + library_.path + " (" + info_.version +
      "): the library does not match this launcher. " + MpiCure(launch));
}

Status MpiSession::MakeCommunicators(const MpiMembers& members) {
  const MpiApi& mpi = library_.api;
  if (members.ranks.has_value() && !members.communicator.has_value()) {
    TF_HVD_RETURN_IF_ERROR(MpiResult(
        mpi, "MPI_Comm_create_group",
        mpi.from_ranks(mpi.state, members.ranks->data(),
                       static_cast<int>(members.ranks->size()), &control_)));
  } else {
    MpiHandle all = mpi.world;
    if (members.communicator.has_value()) {
      TF_HVD_RETURN_IF_ERROR(
          MpiResult(mpi, "MPI_Comm_f2c",
                    mpi.from_fortran(mpi.state, *members.communicator, &all)));
    }
    TF_HVD_RETURN_IF_ERROR(
        MpiResult(mpi, "MPI_Comm_dup", mpi.dup(mpi.state, all, &control_)));
  }
  TF_HVD_RETURN_IF_ERROR(
      MpiResult(mpi, "MPI_Comm_dup", mpi.dup(mpi.state, control_, &data_)));
  TF_HVD_RETURN_IF_ERROR(MpiResult(mpi, "MPI_Comm_rank",
                                   mpi.comm_rank(mpi.state, control_, &rank_)));
  return MpiResult(mpi, "MPI_Comm_size",
                   mpi.comm_size(mpi.state, control_, &size_));
}

Status MpiSession::Gather(const void* mine, int bytes, void* all) const {
  const MpiApi& mpi = library_.api;
  return MpiResult(mpi, "MPI_Allgather",
                   mpi.allgather(mpi.state, mine, bytes, all, control_));
}

void MpiSession::Finalize() {
  const MpiApi& mpi = library_.api;
  mpi.comm_free(mpi.state, &data_);
  mpi.comm_free(mpi.state, &control_);
  if (!owner_) return;
  Own().reset();
  mpi.finalize(mpi.state);
}

}  // namespace tf_hvd
