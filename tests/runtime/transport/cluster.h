// Ranks as threads, each with the backends that TF_HVD_TEST_SHM says: messages
// in memory, or before them the memory that the ranks of one machine share.
#ifndef TF_HVD_TESTS_RUNTIME_TRANSPORT_CLUSTER_H_
#define TF_HVD_TESTS_RUNTIME_TRANSPORT_CLUSTER_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "runtime/transport/loopback_arena.h"
#include "runtime/transport/loopback_point_to_point.h"
#include "runtime/transport/p2p_backend.h"
#include "runtime/transport/shm_backend.h"
#include "tests/runtime/rank_threads.h"
#include "tests/runtime/transport/collectives.h"

namespace tf_hvd {

class Cluster {
 public:
  explicit Cluster(int size, size_t max_message_bytes = PointToPoint::kMaxBytes)
      : all(static_cast<size_t>(size)), memory(size) {
    std::iota(all.begin(), all.end(), 0);
    const auto room = std::make_shared<MailRoom>(size);
    for (int rank = 0; rank < size; ++rank) {
      links.push_back(std::make_unique<LoopbackPointToPoint>(room, rank));
      p2p.push_back(std::make_unique<P2PBackend>(links.back().get(), rank,
                                                 max_message_bytes));
      std::vector<Backend*> backends = {p2p.back().get()};
#ifdef TF_HVD_TEST_SHM
      shm.push_back(std::make_unique<ShmBackend>(memory.arena(), all, rank,
                                                 [](size_t) {}));
      backends.insert(backends.begin(), shm.back().get());
#endif
      collectives.push_back(std::make_unique<Collectives>(backends));
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
  std::vector<std::unique_ptr<P2PBackend>> p2p;
  LoopbackArena memory;
  std::vector<std::unique_ptr<ShmBackend>> shm;
  std::vector<std::unique_ptr<Collectives>> collectives;
};

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_RUNTIME_TRANSPORT_CLUSTER_H_
