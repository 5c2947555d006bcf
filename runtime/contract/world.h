// World: the ranks of a job as this rank sees them, and what it can do with
// them. One implementation for ranks as threads (loopback, also size() == 1),
// one for processes under MPI.
#ifndef TF_HVD_RUNTIME_CONTRACT_WORLD_H_
#define TF_HVD_RUNTIME_CONTRACT_WORLD_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/shared_value.h"
#include "base/status.h"
#include "base/types.h"
#include "runtime/contract/doorbell.h"
#include "runtime/contract/edge.h"
#include "runtime/contract/operation.h"

namespace tf_hvd {

class GpuDevices;  // gpu/devices.h

// How many leaders of nodes are below one in the tree (agreement.md, section
// 2).
inline constexpr int kFanOut = 8;

struct Topology {
  int rank = 0;
  int size = 1;
  // Ranks of each node, ascending; nodes in the order of first ranks.
  SharedValue<std::vector<std::vector<int>>> nodes;
  SharedValue<std::vector<std::string>> hosts;  // host name of each rank
  int fan_out = kFanOut;
  // 0 to size - 1, for copies to have it in common; null: each makes its own.
  SetMembers everyone;

  SetMembers Everyone() const;

  int NodeOf(int of_rank) const;
  int LocalRank() const;  // my place among my node's ranks
  int LocalSize() const;
  int CrossRank() const;  // my place among ranks with my local rank
  int CrossSize() const;
  bool Homogeneous() const;  // every node has the same number of ranks
  std::string RankText(int of_rank) const;     // "rank 3 (host)"
  std::vector<std::string> RankTexts() const;  // of all ranks
};

// "rank 3 (host)"
std::string RankText(int rank, const std::vector<std::string>& hosts);

// Why a job cannot go on. The one with the smallest key wins, on all ranks.
struct AbortRecord {
  enum Class : uint32_t { kDied = 0, kFailed = 1, kStalled = 2 };
  // Longer texts are cut on their way.
  static constexpr size_t kMaxText = 1023;

  uint32_t error_class = kFailed;
  int32_t rank = 0;
  std::string text;

  // Orders by class, then rank, then by a hash of the text: two ranks may blame
  // the same one at once in other words, and all must tell the same story.
  uint64_t Key() const;

  bool Before(const AbortRecord& other) const { return Key() < other.Key(); }
};

// Writes warnings that concern all ranks of a machine alike: one of them does.
// Null on all others, and where the log has no warnings.
std::function<void(const std::string& text)> WarnForMachine(
    const Topology& topology, LogLevel lowest);

class World {
 public:
  virtual ~World() = default;

  virtual const Topology& topology() const = 0;

  // The stream to and from a neighbour in the tree; owned by the world.
  virtual Edge* edge(int neighbour) = 0;

  // This rank's own doorbell.
  virtual Doorbell* doorbell() = 0;

  // Whether another rank was last seen on the core that this thread is on, so
  // that it may wait for this thread. Where that is not known: yes.
  virtual bool SharesCore() { return true; }

  // The ways to move data, in the order in which they are asked whether they
  // serve an operation; owned by the world. The same on all ranks.
  virtual std::vector<Backend*> backends() = 0;
  // This process' GPUs; null if there are none.
  virtual GpuDevices* gpus() { return nullptr; }
  // Which ways these are, for the log.
  virtual std::string DescribeData() const = 0;

  // Writes the record where every rank of the job will find it, unless a
  // smaller one is there. Any thread.
  virtual void RaiseAbort(const AbortRecord& record) = 0;

  // Passes records on and gives the smallest that arrived at this node.
  // Cheap; called by the holder of the progress lock in every wait. Looks for
  // dead neighbours about once a second.
  virtual std::optional<AbortRecord> PollAbort() = 0;

  // Ends the world; called once, when the runtime's thread has ended. With
  // `clean` false nothing that waits for another rank is called.
  virtual void Finalize(bool clean) = 0;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_CONTRACT_WORLD_H_
