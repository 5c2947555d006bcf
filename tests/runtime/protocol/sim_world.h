// SimWorld: the ranks of a simulated job and their surroundings: edges that
// keep the order and have latencies, meetings of the data, the flood of an
// ABORT, death and detection. A model of the surroundings; the code under test
// is the Controller in each rank.
#ifndef TF_HVD_TESTS_RUNTIME_PROTOCOL_SIM_WORLD_H_
#define TF_HVD_TESTS_RUNTIME_PROTOCOL_SIM_WORLD_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/agreement/message.h"
#include "runtime/contract/world.h"
#include "tests/runtime/protocol/event_queue.h"
#include "tests/runtime/protocol/history.h"
#include "tests/runtime/protocol/random.h"
#include "tests/runtime/protocol/sim_rank.h"

namespace tf_hvd::protocol_test {

// Faulty surroundings, to check that the invariants detect them.
struct SimOptions {
  bool separate_streams = false;  // each set's batches have a separate stream
  bool stall_closes = false;      // a stall ends in CLOSE instead of ABORT
};

class SimWorld {
 public:
  SimWorld(uint64_t seed, const SimOptions& options);
  ~SimWorld();
  SimWorld(const SimWorld&) = delete;
  SimWorld& operator=(const SimWorld&) = delete;

  EventQueue* events() { return &events_; }
  Random* random() { return &random_; }
  History* history() { return &history_; }
  const SimOptions& options() const { return options_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  SimRank* rank(int r) { return ranks_[static_cast<size_t>(r)].get(); }

  // Calls `done` when the request has ended; not if its rank died before.
  using Done = std::function<void(const Submission&)>;
  void Submit(int rank, Submission submission, const Request& request,
              Done done);

  // Every edge takes as long as the slowest ones.
  void SlowDown() { latency_ns_ = 10 * kMs; }
  void Kill(int rank);
  void Stop(int rank);
  void Leave(int rank, const std::string& reason, bool through);
  void RaiseAbort(int rank, const AbortRecord& request);

  // Runs until no event is left, or a fault was found.
  void Run(int64_t limit_ns);

  // For SimRank. A message is sent, and perhaps delivered later.
  void Sends(int from, int to, std::string_view message);
  void Carry(int from, int to, std::string message);
  void Executes(int rank, const OrderKey& key, const Response& run);
  void Meet(int rank, const OrderKey& key, const Response& run);
  void SetAdded(int32_t set, const std::vector<int>& ranks);
  void Reported(const std::string& text, bool fatal);
  void AwaitClose(int rank);

 private:
  struct Meeting {
    std::vector<int> ranks;
    int instance = -1;  // of the first rank with data
    int64_t step = -1;  // likewise
  };
  struct Cell {  // of a node's segment
    bool written = false;
    AbortRecord request;
  };

  void BuildTree();
  int64_t Latency(int from, int to);
  void CarryOn(const std::tuple<int, int, int32_t>& stream,
               std::string message);
  void SplitBatch(int from, int to, Message message);
  int NumberOf(const Submission& submission);
  void Fired(size_t index, const Status& status, int32_t value);
  void StartTicks();
  void TickRank(int rank);
  void Detect(int rank, const std::string& text);
  void Spread(size_t node, const AbortRecord& request);

  const SimOptions options_;
  Random random_;
  History history_;
  EventQueue events_;
  Topology topology_;
  bool neighbours_told_ = false;  // MPI reports a dead neighbour
  bool over_ = false;
  int64_t latency_ns_ = 0;  // 0: separate for each edge
  int64_t tick_ns_ = 0;
  int64_t unfinished_ = 0;
  std::map<std::pair<int, int>, int64_t> edge_latency_ns_;
  std::map<std::tuple<int, int, int32_t>, int64_t> stream_end_ns_;
  std::map<OrderKey, Meeting> meetings_;
  // Stall queries on edges: sender, receiver, subject, number.
  std::set<std::tuple<int, int, std::string, uint32_t>> unanswered_;
  std::map<std::pair<int, std::string>, int64_t> last_ask_ns_;
  // By rank, set, number of joins so far, and name.
  std::map<std::tuple<int, int32_t, int, std::string>, int> instances_;
  std::map<std::pair<int, int32_t>, int> joins_;
  std::vector<Done> waiters_;  // by index of the submission
  std::vector<Cell> cells_;    // by node
  std::vector<bool> ticking_;  // by rank
  std::vector<std::unique_ptr<SimRank>> ranks_;
};

}  // namespace tf_hvd::protocol_test

#endif  // TF_HVD_TESTS_RUNTIME_PROTOCOL_SIM_WORLD_H_
