// Messages between simulated ranks: only their lengths are simulated, except
// those of the agreement, which also have contents.
#ifndef TF_HVD_BENCHMARKS_SCALE_MESSAGES_H_
#define TF_HVD_BENCHMARKS_SCALE_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "benchmarks/scale/network.h"
#include "benchmarks/scale/virtual_time.h"
#include "runtime/contract/edge.h"
#include "runtime/contract/point_to_point.h"

namespace tf_hvd::scale {

// Wakes the rank when its message has arrived or was sent.
using WakeRank = std::function<void(int rank)>;

// Messages in progress between all ranks. As in MPI, a long message is sent
// when both sides are ready, a short one immediately.
class MailRoom {
 public:
  MailRoom(VirtualTime* time, Network* network, WakeRank wake)
      : time_(time), network_(network), wake_(std::move(wake)) {}

  using HandleId = uint64_t;  // starts at 1

  HandleId Send(int from, int to, int tag, size_t bytes);
  HandleId Receive(int to, int from, int tag, size_t bytes);
  // Returns true once and then releases the handle.
  bool Take(HandleId handle);

  // Between nodes, so far.
  uint64_t messages_across() const { return messages_; }
  double bytes_across() const { return bytes_; }

 private:
  struct Posted {
    HandleId handle = 0;
    size_t bytes = 0;
    int64_t ready_ns = 0;  // for a short message: when it has arrived
    bool eager = false;
  };
  struct Box {
    std::deque<Posted> sends;
    std::deque<Posted> receives;
  };

  Box& BoxOf(int from, int to, int tag);
  HandleId NewHandle();
  void EndAt(int64_t time_ns, HandleId handle, int rank);
  void Match(int from, int to, const Posted& send, const Posted& receive);

  VirtualTime* const time_;
  Network* const network_;
  const WakeRank wake_;
  std::vector<bool> done_;  // by handle
  std::vector<HandleId> free_;
  std::unordered_map<uint64_t, Box> boxes_;
  uint64_t messages_ = 0;
  double bytes_ = 0;
};

// The PointToPoint of one rank.
class SimPointToPoint final : public PointToPoint {
 public:
  SimPointToPoint(VirtualTime* time, Network* network, MailRoom* room, int rank)
      : time_(time), network_(network), room_(room), rank_(rank) {}

  Status Send(int peer, int tag, const void* data, size_t bytes,
              MessageHandle* handle) override;
  Status Receive(int peer, int tag, void* data, size_t bytes,
                 MessageHandle* handle) override;
  Status Test(MessageHandle handle, bool* done) override;
  bool Abandon(MessageHandle) override { return true; }

 private:
  VirtualTime* const time_;
  Network* const network_;
  MailRoom* const room_;
  const int rank_;
};

// The Edge between two ranks.
class SimEdge final : public Edge {
 public:
  SimEdge(VirtualTime* time, Network* network, WakeRank wake, int rank,
          int neighbour)
      : time_(time),
        network_(network),
        wake_(std::move(wake)),
        rank_(rank),
        neighbour_(neighbour) {}

  // In both directions: the neighbour's edge to this rank.
  void Join(SimEdge* other) { other_ = other; }

  size_t Write(const char* data, size_t size) override;
  void Flush() override;
  size_t Read(char* data, size_t size) override;
  bool Readable() const override { return !arrived_.empty(); }
  bool polled() const override;

 private:
  VirtualTime* const time_;
  Network* const network_;
  const WakeRank wake_;
  const int rank_;
  const int neighbour_;
  SimEdge* other_ = nullptr;
  std::string written_;
  std::string arrived_;
  int64_t last_ns_ = 0;  // when the last written data arrives
};

}  // namespace tf_hvd::scale

#endif  // TF_HVD_BENCHMARKS_SCALE_MESSAGES_H_
