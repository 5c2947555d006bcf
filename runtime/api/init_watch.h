// InitWatch: what tells the user that init waits for other ranks, and ends the
// process when that takes too long. Nothing else can: whoever has called
// MPI_Init waits in it until all ranks have.
//
// Ranks of this machine are found among its processes, below the launcher that
// started this one; those that are in init have a thread of a name. So nothing
// has to be written, or taken away, before MPI connects the ranks.
#ifndef TF_HVD_RUNTIME_API_INIT_WATCH_H_
#define TF_HVD_RUNTIME_API_INIT_WATCH_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/config.h"
#include "runtime/base/latch.h"

namespace tf_hvd {

// What can be seen of the ranks of this machine.
struct InitView {
  struct Rank {
    bool in_init = false;
    std::string process;  // "process 12 (python x.py)"
    bool stopped = false;
  };
  bool launcher_seen = false;
  // Processes of the launcher that may be ranks, but do not say which.
  int unknown = 0;
  std::map<int, Rank> ranks;  // those that have a process
};

InitView LookAtRanks(const LaunchInfo& launch);

// Ranks that the job needs and that have ended: they will not come. Empty
// where that cannot be told. `known`: those that were seen here before. Pure.
std::vector<int> EndedRanks(const InitView& view, const LaunchInfo& launch,
                            const std::vector<int>& needed,
                            const std::set<int>& known);

// "init() has waited 30 s: rank 1 (process ...) has not called it yet; ...".
// `needed`: the ranks of the job, by the launcher's count; `ended`: of
// EndedRanks. Pure.
std::string DescribeWait(const InitView& view, const LaunchInfo& launch,
                         const std::vector<int>& needed,
                         const std::vector<int>& ended, int64_t waited_s);

class InitWatch {
 public:
  // The thread's name, by which other ranks know that this one is in init.
  static constexpr char kThreadName[] = "tf_hvd_init";

  // `needed`: the ranks without which the job does not start, by the launcher's
  // count.
  InitWatch(const Config& config, const LaunchInfo& launch,
            std::vector<int> needed);
  // Init has come back.
  ~InitWatch();

  InitWatch(const InitWatch&) = delete;
  InitWatch& operator=(const InitWatch&) = delete;

 private:
  void Watch();
  [[noreturn]] void End(const std::string& why);
  int64_t WaitedSeconds() const;

  const Config config_;
  const LaunchInfo launch_;
  const std::vector<int> needed_;
  const std::string who_;  // "rank 1 (host)"
  const int64_t start_ns_;
  Latch over_;  // init has come back
  std::thread thread_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_API_INIT_WATCH_H_
