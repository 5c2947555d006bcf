// Counts the messages between ranks that are threads.
#ifndef TF_HVD_TESTS_RUNTIME_TRANSPORT_METER_H_
#define TF_HVD_TESTS_RUNTIME_TRANSPORT_METER_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <functional>

#include "runtime/contract/point_to_point.h"
#include "runtime/transport/p2p/backend.h"
#include "runtime/transport/routing/two_level.h"
#include "tests/runtime/rank_threads.h"
#include "tests/runtime/transport/cluster.h"

namespace tf_hvd {

// From any thread.
struct Sent {
  std::atomic<size_t> messages{0};
  std::atomic<size_t> bytes{0};
};

// Counts the bytes that a rank sends.
class Meter final : public PointToPoint {
 public:
  Meter(PointToPoint* to, Sent* sent) : to_(to), sent_(sent) {}
  Status Send(int peer, int tag, const void* data, size_t bytes,
              MessageHandle* handle) override {
    ++sent_->messages;
    sent_->bytes += bytes;
    return to_->Send(peer, tag, data, bytes, handle);
  }
  Status Receive(int peer, int tag, void* data, size_t bytes,
                 MessageHandle* handle) override {
    return to_->Receive(peer, tag, data, bytes, handle);
  }
  Status Test(MessageHandle handle, bool* done) override {
    return to_->Test(handle, done);
  }
  bool Abandon(MessageHandle handle) override { return to_->Abandon(handle); }

 private:
  PointToPoint* const to_;
  Sent* const sent_;
};

struct Counts {
  size_t messages = 0;
  size_t bytes = 0;
};

// The bytes that all ranks send while `run` runs on each: by two levels where
// these serve it, otherwise by messages only. For tests of Way::kTwoLevel.
inline Counts SentBy(
    const Nodes& nodes,
    const std::function<Status(const Cluster&, Collectives*, int)>& run) {
  Cluster cluster(nodes);
  Sent sent;
  RunRanks(cluster.size(), [&](int rank) {
    const auto place = static_cast<size_t>(rank);
    Meter meter(cluster.links[place].get(), &sent);
    TwoLevelBackend two_level(cluster.nodes, rank, cluster.shm[place].get(),
                              &meter);
    P2PBackend p2p(&meter, rank);
    Collectives data({&two_level, &p2p});
    const Status status = run(cluster, &data, rank);
    EXPECT_TRUE(status.ok()) << status.message();
  });
  return {sent.messages, sent.bytes};
}

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_RUNTIME_TRANSPORT_METER_H_
