// Ranks as threads, each with a P2PBackend on messages in memory.
#ifndef TF_HVD_TESTS_RUNTIME_TRANSPORT_P2P_CLUSTER_H_
#define TF_HVD_TESTS_RUNTIME_TRANSPORT_P2P_CLUSTER_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "runtime/transport/loopback_point_to_point.h"
#include "runtime/transport/p2p_backend.h"
#include "tests/runtime/rank_threads.h"
#include "tests/runtime/transport/collectives.h"

namespace tf_hvd {

class P2PCluster {
 public:
  explicit P2PCluster(int size,
                      size_t max_message_bytes = PointToPoint::kMaxBytes)
      : all(static_cast<size_t>(size)) {
    std::iota(all.begin(), all.end(), 0);
    const auto room = std::make_shared<MailRoom>(size);
    for (int rank = 0; rank < size; ++rank) {
      links.push_back(std::make_unique<LoopbackPointToPoint>(room, rank));
      backends.push_back(std::make_unique<P2PBackend>(links.back().get(), rank,
                                                      max_message_bytes));
      collectives.push_back(
          std::make_unique<Collectives>(backends.back().get()));
    }
  }

  int size() const { return static_cast<int>(all.size()); }

  // Runs `fn` on all ranks at once and expects all to be well.
  void Run(const std::function<Status(int rank, Collectives* data)>& fn) {
    RunRanks(size(), [&](int rank) {
      const Status status =
          fn(rank, collectives[static_cast<size_t>(rank)].get());
      EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status.message();
    });
  }

  std::vector<int> all;  // the ranks
  std::vector<std::unique_ptr<LoopbackPointToPoint>> links;
  std::vector<std::unique_ptr<P2PBackend>> backends;
  std::vector<std::unique_ptr<Collectives>> collectives;
};

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_RUNTIME_TRANSPORT_P2P_CLUSTER_H_
