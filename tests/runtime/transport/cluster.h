// Ranks as threads, each with the backends selected for its test.
#ifndef TF_HVD_TESTS_RUNTIME_TRANSPORT_CLUSTER_H_
#define TF_HVD_TESTS_RUNTIME_TRANSPORT_CLUSTER_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/transport/loopback/arena.h"
#include "runtime/transport/loopback/point_to_point.h"
#include "runtime/transport/p2p/backend.h"
#include "runtime/transport/routing/two_level.h"
#include "runtime/transport/shm/backend.h"
#include "tests/runtime/rank_threads.h"
#include "tests/runtime/transport/collectives.h"

namespace tf_hvd {

// The data paths: messages in memory; in addition, shared memory of the ranks
// of one machine; in addition, several machines.
enum class Way { kP2P, kShm, kTwoLevel };

// From `env` in a test's BUILD rule: one program tests all data paths.
inline Way WayOfTest() {
  const char* given = std::getenv("TF_HVD_TEST_WAY");
  const std::string way = given != nullptr ? given : "p2p";
  EXPECT_TRUE(way == "p2p" || way == "shm" || way == "two_level") << way;
  if (way == "two_level") return Way::kTwoLevel;
  return way == "shm" ? Way::kShm : Way::kP2P;
}

// Also from BUILD: how the ranks write to their slots.
inline SlotStores StoresOfTest() {
  const char* given = std::getenv("TF_HVD_TEST_STORES");
  const std::string stores = given != nullptr ? given : "measured";
  EXPECT_TRUE(stores == "measured" || stores == "streaming" ||
              stores == "alternating")
      << stores;
  if (stores == "alternating") return SlotStores::kAlternating;
  return stores == "streaming" ? SlotStores::kStreaming : SlotStores::kMeasured;
}

using Nodes = std::vector<std::vector<int>>;  // the ranks of each

// Ranks on nodes of these sizes, in this order.
inline Nodes NodesOf(const std::vector<int>& sizes) {
  Nodes nodes;
  int next = 0;
  for (const int size : sizes) {
    nodes.emplace_back(static_cast<size_t>(size));
    std::iota(nodes.back().begin(), nodes.back().end(), next);
    next += size;
  }
  return nodes;
}

inline Nodes UsualNodes(int size) {
  if (WayOfTest() == Way::kTwoLevel) {
    if (size == 3) return NodesOf({2, 1});
    if (size == 4) return NodesOf({2, 2});
    if (size > 4) return NodesOf({1, 3, size - 4});
  }
  return NodesOf({size});
}

class Cluster {
 public:
  explicit Cluster(int size, size_t max_message_bytes = PointToPoint::kMaxBytes)
      : Cluster(UsualNodes(size), max_message_bytes) {}

  explicit Cluster(const Nodes& on,
                   size_t max_message_bytes = PointToPoint::kMaxBytes,
                   SlotStores by = StoresOfTest())
      : nodes(on), stores(by) {
    std::map<int, size_t> node_of;
    for (const auto& node : nodes) {
      for (const int rank : node) node_of[rank] = memory.size();
      memory.push_back(
          std::make_unique<LoopbackArena>(static_cast<int>(node.size())));
    }
    const auto room =
        std::make_shared<MailRoom>(static_cast<int>(node_of.size()));
    for (const auto& [rank, node] : node_of) {
      all.push_back(rank);
      AddRank(room, node, rank, max_message_bytes);
    }
  }

  int size() const { return static_cast<int>(all.size()); }

  // Runs `fn` on all ranks concurrently and expects all to succeed.
  void Run(const std::function<Status(int rank, Collectives* data)>& fn) {
    RunRanks(size(), [&](int rank) {
      const Status status =
          fn(rank, collectives[static_cast<size_t>(rank)].get());
      EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status.message();
    });
  }

  const Nodes nodes;
  const SlotStores stores;
  std::vector<int> all;  // the ranks
  std::vector<std::unique_ptr<LoopbackPointToPoint>> links;
  std::vector<std::unique_ptr<P2PBackend>> p2p;
  std::vector<std::unique_ptr<LoopbackArena>> memory;  // by node
  std::vector<std::unique_ptr<ShmBackend>> shm;
  std::vector<std::unique_ptr<TwoLevelBackend>> two_level;
  // In the order in which they are asked.
  std::vector<std::vector<Backend*>> backends;
  std::vector<std::unique_ptr<Collectives>> collectives;

 private:
  void AddRank(const std::shared_ptr<MailRoom>& room, size_t node, int rank,
               size_t max_message_bytes) {
    PointToPoint* const link =
        links.emplace_back(std::make_unique<LoopbackPointToPoint>(room, rank))
            .get();
    p2p.push_back(std::make_unique<P2PBackend>(link, rank, max_message_bytes));
    std::vector<Backend*>& mine = backends.emplace_back();
    if (WayOfTest() != Way::kP2P) {
      shm.push_back(std::make_unique<ShmBackend>(
          memory[node]->arena(), nodes[node], rank, [](size_t) {},
          SlotOptions{stores, nullptr}));
      two_level.push_back(std::make_unique<TwoLevelBackend>(
          nodes, rank, shm.back().get(), link, max_message_bytes));
      mine = {shm.back().get(), two_level.back().get()};
    }
    mine.push_back(p2p.back().get());
    collectives.push_back(std::make_unique<Collectives>(mine));
  }
};

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_RUNTIME_TRANSPORT_CLUSTER_H_
