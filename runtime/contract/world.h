// World: the ranks of a job as seen by this rank, and its means to communicate
// with them. One implementation for ranks as threads (loopback, also size() ==
// 1), one for processes under MPI.
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

// Number of nodes' leaders below one leader in the tree (agreement.md, section
// 2).
inline constexpr int kFanOut = 8;

struct Topology {
  int rank = 0;
  int size = 1;
  // Ranks of each node, ascending; nodes in the order of their first ranks.
  SharedValue<std::vector<std::vector<int>>> nodes;
  SharedValue<std::vector<std::string>> hosts;  // host name of each rank
  int fan_out = kFanOut;
  // 0 to size - 1, shared by all copies; null: each copy makes its own.
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

// Why a job cannot continue. The record with the smallest key wins, on all
// ranks.
struct AbortRecord {
  enum Class : uint32_t { kDied = 0, kFailed = 1, kStalled = 2 };
  // Longer texts are truncated in transit.
  static constexpr size_t kMaxText = 1023;

  uint32_t error_class = kFailed;
  int32_t rank = 0;
  std::string text;

  // Orders by class, then rank, then by a hash of the text: two ranks may blame
  // the same rank at once in different words, and all must report the same
  // text.
  uint64_t Key() const;

  bool Before(const AbortRecord& other) const { return Key() < other.Key(); }
};

// Writes warnings that apply to all ranks on a machine, so that only one rank
// prints them. Null on all other ranks, and if the log level excludes warnings.
std::function<void(const std::string& text)> WarnForMachine(
    const Topology& topology, LogLevel lowest);

class World {
 public:
  virtual ~World() = default;

  virtual const Topology& topology() const = 0;

  // The stream to and from a neighbour in the tree; owned by the world.
  virtual Edge* edge(int neighbour) = 0;

  // This rank's doorbell.
  virtual Doorbell* doorbell() = 0;

  // Whether another rank was last seen on this thread's core, so that it may be
  // waiting for this thread. True if unknown.
  virtual bool SharesCore() { return true; }

  // The backends, in the order in which they are asked whether they serve an
  // operation; owned by the world. The same on all ranks.
  virtual std::vector<Backend*> backends() = 0;
  // This process's GPUs; null if there are none.
  virtual GpuDevices* gpus() { return nullptr; }
  // Describes the backends for the log.
  virtual std::string DescribeData() const = 0;

  // Publishes the record to every rank of the job, unless a smaller one is
  // already published. Any thread.
  virtual void RaiseAbort(const AbortRecord& record) = 0;

  // Forwards records and returns the smallest that has arrived at this node.
  // Cheap; called by the holder of the progress lock in every wait. Checks for
  // dead neighbours about once a second.
  virtual std::optional<AbortRecord> PollAbort() = 0;

  // Ends the world; called once, when the runtime's thread has ended. If
  // `clean` is false, nothing that waits for another rank is called.
  virtual void Finalize(bool clean) = 0;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_CONTRACT_WORLD_H_
