// The cost of an NCCL call for its caller, on blocking and nonblocking
// communicators. A communicator with a single rank takes a shortcut, and is
// measured separately.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "runtime/transport/gpu/nccl_communicator.h"
#include "tests/gpu/device_probes.h"

namespace tf_hvd {
namespace {

constexpr std::chrono::seconds kLimit{60};
constexpr size_t kSmall = 256;  // elements
constexpr int kGroup = 8;
// A large call takes as long as its data transfer.
constexpr int kSeldom = 10;

struct Times {
  std::vector<double> call;   // until the last function has returned
  std::vector<double> ready;  // until NCCL accepts the next call
  std::vector<double> done;   // until the stream has completed it
};

class Caller {
 public:
  Caller(const ProbeSide& side, const NcclApi& nccl, bool blocking)
      : side_(side), nccl_(nccl), blocking_(blocking) {}
  ~Caller() {
    if (comm_ == nullptr) return;
    static_cast<void>(side_.device()->Within([this] {
      static_cast<void>(nccl_.comm_abort(comm_));
      return Status::Ok();
    }));
  }

  Status Connect(const NcclUniqueId& id, int ranks, int rank) {
    TF_HVD_RETURN_IF_ERROR(side_.side()->Allocate(
        std::max(side_.large(), kSmall * sizeof(float)), &memory_));
    NcclConfig config;
    config.blocking = blocking_ ? 1 : 0;
    return side_.device()->Within([&]() -> Status {
      TF_HVD_RETURN_IF_ERROR(
          Check("ncclCommInitRankConfig",
                nccl_.comm_init_rank_config(&comm_, ranks, id, rank, &config)));
      return AwaitReady();
    });
  }

  // Allreduces with this many elements, `group` of them at once.
  Status Measure(size_t count, int group, int repetitions, Times* times) {
    for (int i = -3; i < repetitions; ++i) {  // the first calls connect
      double took[3] = {0, 0, 0};
      TF_HVD_RETURN_IF_ERROR(Once(count, group, took));
      if (i < 0) continue;
      times->call.push_back(took[0]);
      times->ready.push_back(took[1]);
      times->done.push_back(took[2]);
    }
    return Status::Ok();
  }

  // Without errors: both ranks reach this.
  Status End() {
    return side_.device()->Within([&]() -> Status {
      TF_HVD_RETURN_IF_ERROR(
          Check("ncclCommFinalize", nccl_.comm_finalize(comm_)));
      TF_HVD_RETURN_IF_ERROR(AwaitReady());
      const NcclComm comm = std::exchange(comm_, nullptr);
      return Check("ncclCommDestroy", nccl_.comm_destroy(comm));
    });
  }

 private:
  Status Check(const char* call, int error) const {
    return FromNccl(nccl_, call, error);
  }

  Status AwaitReady() {
    const auto end = ProbeClock::now() + kLimit;
    for (int error = kNcclInProgress; error == kNcclInProgress;) {
      TF_HVD_RETURN_IF_ERROR(Check("ncclCommGetAsyncError",
                                   nccl_.comm_get_async_error(comm_, &error)));
      TF_HVD_RETURN_IF_ERROR(Check("NCCL", error));
      if (ProbeClock::now() > end) return Aborted("NCCL hangs");
    }
    return Status::Ok();
  }

  Status Put(size_t count, int group) {
    const bool grouped = group > 1;
    if (grouped) {
      TF_HVD_RETURN_IF_ERROR(Check("ncclGroupStart", nccl_.group_start()));
    }
    Status status;
    for (int i = 0; i < group && status.ok(); ++i) {
      auto* const at =
          reinterpret_cast<float*>(memory_) + static_cast<size_t>(i) * count;
      status = Check(
          "ncclAllReduce",
          nccl_.all_reduce(at, at, count, NcclNumber::kFloat32,
                           NcclReduction::kSum, comm_, side_.side()->stream()));
    }
    if (grouped) {
      const Status ended = Check("ncclGroupEnd", nccl_.group_end());
      if (status.ok()) status = ended;
    }
    return status;
  }

  // A context is current.
  Status PutAndAwait(size_t count, int group, ProbeClock::time_point start,
                     double* took) {
    TF_HVD_RETURN_IF_ERROR(Put(count, group));
    took[0] = MicrosecondsSince(start);
    TF_HVD_RETURN_IF_ERROR(AwaitReady());
    took[1] = MicrosecondsSince(start);
    return Status::Ok();
  }

  Status Once(size_t count, int group, double* took) {
    std::shared_ptr<GpuEvent> done;
    const auto start = ProbeClock::now();
    const Status put = side_.device()->Within(
        [&] { return PutAndAwait(count, group, start, took); });
    TF_HVD_RETURN_IF_ERROR(put);
    TF_HVD_RETURN_IF_ERROR(
        side_.device()->Record(side_.side()->stream(), &done));
    TF_HVD_RETURN_IF_ERROR(side_.Await(*done));
    took[2] = MicrosecondsSince(start);
    return Status::Ok();
  }

  const ProbeSide& side_;
  const NcclApi& nccl_;
  const bool blocking_;
  char* memory_ = nullptr;
  NcclComm comm_ = nullptr;
};

void Add(const std::string& name, const Times& times, Figures* figures) {
  figures->Add(name + "_call_us", Percentile(times.call, 50));
  figures->Add(name + "_ready_us", Percentile(times.ready, 50));
  figures->Add(name + "_ready_90th_us", Percentile(times.ready, 90));
  figures->Add(name + "_done_us", Percentile(times.done, 50));
}

Status Exchange(const NcclApi& nccl, int rank, int peer, NcclUniqueId* id) {
  if (rank == 0) {
    TF_HVD_RETURN_IF_ERROR(
        FromNccl(nccl, "ncclGetUniqueId", nccl.get_unique_id(id)));
    return send(peer, id, sizeof(*id), MSG_NOSIGNAL) == sizeof(*id)
               ? Status::Ok()
               : Aborted("the other process has ended");
  }
  return recv(peer, id, sizeof(*id), MSG_WAITALL) == sizeof(*id)
             ? Status::Ok()
             : Aborted("the other process has ended");
}

Status MeasureTwo(const ProbeSide& side, const NcclApi& nccl, int rank,
                  int peer, bool blocking, Figures* figures) {
  NcclUniqueId id;
  Caller caller(side, nccl, blocking);
  TF_HVD_RETURN_IF_ERROR(Exchange(nccl, rank, peer, &id));
  TF_HVD_RETURN_IF_ERROR(caller.Connect(id, 2, rank));
  const std::string how = blocking ? "blocking" : "nonblocking";
  const int often = side.repetitions();
  const int seldom = std::min(often, kSeldom);
  const size_t large = side.large() / sizeof(float);
  struct {
    const char* what;
    size_t count;
    int group;
    int repetitions;
  } const cases[] = {{"_small", kSmall, 1, often},
                     {"_group", kSmall / kGroup, kGroup, often},
                     {"_large", large, 1, seldom}};
  for (const auto& one : cases) {
    Times times;
    TF_HVD_RETURN_IF_ERROR(
        caller.Measure(one.count, one.group, one.repetitions, &times));
    Add(how + one.what, times, figures);
  }
  return caller.End();
}

Status MeasureOne(const ProbeSide& side, const NcclApi& nccl, bool blocking,
                  Figures* figures) {
  NcclUniqueId id;
  Caller caller(side, nccl, blocking);
  TF_HVD_RETURN_IF_ERROR(
      FromNccl(nccl, "ncclGetUniqueId", nccl.get_unique_id(&id)));
  TF_HVD_RETURN_IF_ERROR(caller.Connect(id, 1, 0));
  Times times;
  TF_HVD_RETURN_IF_ERROR(caller.Measure(kSmall, 1, side.repetitions(), &times));
  Add(std::string("one_rank_") + (blocking ? "blocking" : "nonblocking"), times,
      figures);
  return caller.End();
}

}  // namespace

Status ProbeCalls(const ProgramOptions& options, const GpuLibraries& libraries,
                  int rank, int peer, Figures* figures) {
  std::string reason;
  const int gpus = ProgramOptions::Count(libraries, &reason);
  if (gpus < 2) {
    // As in nccl_job.cc: NCCL sees two hosts with a GPU each.
    setenv("NCCL_HOSTID", ("tf_hvd-" + std::to_string(rank)).c_str(), 1);
  }
  if (libraries.nccl == nullptr) {
    figures->NotHere("no NCCL: " + libraries.no_nccl);
    return Status::Ok();
  }
  figures->Add("nccl_version", libraries.nccl_version);
  figures->Add("ranks_share_a_gpu", gpus < 2 ? 1 : 0);
  std::unique_ptr<ProbeSide> side;
  TF_HVD_RETURN_IF_ERROR(
      ProbeSide::Open(options, libraries, rank % gpus, &side));
  // First the measurement with a single rank: NCCL may refuse that two ranks
  // share a GPU.
  for (const bool blocking : {false, true}) {
    if (rank != 0) break;
    TF_HVD_RETURN_IF_ERROR(
        MeasureOne(*side, *libraries.nccl, blocking, figures));
  }
  for (const bool blocking : {false, true}) {
    TF_HVD_RETURN_IF_ERROR(
        MeasureTwo(*side, *libraries.nccl, rank, peer, blocking, figures));
  }
  return Status::Ok();
}

}  // namespace tf_hvd
