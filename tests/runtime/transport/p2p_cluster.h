// Ranks as threads, each with a P2PTransport on messages in memory.
#ifndef TF_HVD_TESTS_RUNTIME_TRANSPORT_P2P_CLUSTER_H_
#define TF_HVD_TESTS_RUNTIME_TRANSPORT_P2P_CLUSTER_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "runtime/transport/loopback_messenger.h"
#include "runtime/transport/p2p_transport.h"
#include "tests/runtime/rank_threads.h"

namespace tf_hvd {

class P2PCluster {
 public:
  explicit P2PCluster(int size, size_t max_message_bytes = Messenger::kMaxBytes)
      : all(static_cast<size_t>(size)) {
    std::iota(all.begin(), all.end(), 0);
    const auto room = std::make_shared<MailRoom>(size);
    for (int rank = 0; rank < size; ++rank) {
      messengers.push_back(std::make_unique<LoopbackMessenger>(room, rank));
      transports.push_back(std::make_unique<P2PTransport>(
          messengers.back().get(), rank, true, max_message_bytes));
    }
  }

  int size() const { return static_cast<int>(all.size()); }

  // Runs `fn` on all ranks at once and expects all to be well.
  void Run(const std::function<Status(int rank, DataTransport* data)>& fn) {
    RunRanks(size(), [&](int rank) {
      const Status status =
          fn(rank, transports[static_cast<size_t>(rank)].get());
      EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status.message();
    });
  }

  static Status NoPump() { return Status::Ok(); }

  std::vector<int> all;  // the ranks
  std::vector<std::unique_ptr<LoopbackMessenger>> messengers;
  std::vector<std::unique_ptr<P2PTransport>> transports;
};

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_RUNTIME_TRANSPORT_P2P_CLUSTER_H_
