// A single controller: a host that records its calls, topologies, and messages
// for the controller.
#ifndef TF_HVD_TESTS_RUNTIME_SINGLE_CONTROLLER_H_
#define TF_HVD_TESTS_RUNTIME_SINGLE_CONTROLLER_H_

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "runtime/agreement/controller.h"

namespace tf_hvd {

class Host final : public ResponseRunner, public ControllerHost {
 public:
  std::vector<std::pair<int, Message>> sent;
  std::vector<Response> runs;
  std::vector<std::string> warnings;
  std::vector<AbortRecord> aborts;
  std::vector<SetMembers> added;
  uint64_t moves = 0;
  int waits_for = -1;
  std::string compiling;
  std::string place;  // empty: the program's line is unknown

  void Send(int neighbour, std::string_view bytes) override {
    Message message;
    ASSERT_TRUE(DecodeMessage(bytes, &message).ok());
    sent.emplace_back(neighbour, std::move(message));
  }
  void Add(std::vector<Response> batch) override {
    for (Response& run : batch) runs.push_back(std::move(run));
  }
  uint64_t moved() const override { return moves; }
  int awaited() const override { return waits_for; }
  size_t Backlog() const override { return 0; }
  void Complete(Completion done, Status status, int32_t value) override {
    done.Fire(status, value);
  }
  void SetAdded(int32_t, const SetMembers& members) override {
    added.push_back(members);
  }
  void SetRemoved(int32_t) override {}
  std::string Compiling() const override { return compiling; }
  bool AskPlace() override { return !place.empty(); }
  std::string Place() const override { return place; }
  void Warn(const std::string& text) override { warnings.push_back(text); }
  void Abort(AbortRecord::Class error_class, int32_t rank,
             const std::string& text) override {
    aborts.push_back({error_class, rank, text});
  }
};

// Ranks 0 and 1 on host a, 2 and 3 on host b.
inline Topology TwoNodes(int rank) {
  Topology topology;
  topology.rank = rank;
  topology.size = 4;
  topology.nodes = {{0, 1}, {2, 3}};
  topology.hosts = {"a", "a", "b", "b"};
  return topology;
}

inline Entry Allreduce(const std::string& name) {
  Entry entry;
  entry.name = name;
  entry.request.tensors.push_back({DType::kFloat32, {1}});
  entry.tensors.emplace_back();
  entry.submitted_ns = kSecond;
  entry.done = Completion([](const Status&, int32_t) {});
  return entry;
}

inline Response Ordered(const std::string& name, const Request& request) {
  Response response;
  response.key.second = name;
  response.request = SharedRequest(request);
  return response;
}

inline std::string FrameOf(Response response) {
  Message batch;
  batch.kind = MessageKind::kResponses;
  batch.batch.push_back(std::move(response));
  return EncodeMessage(batch);
}

inline std::string VoteOf(int rank, int32_t set, const std::string& name) {
  Message vote;
  vote.set = set;
  vote.name = name;
  vote.vote.first = {rank, SharedRequest(Allreduce(name).request)};
  vote.vote.last_rank = rank;
  return EncodeMessage(vote);
}

// Nine ranks on one node; this one is the parent of the others.
inline Topology OneNode() {
  Topology topology;
  topology.size = 9;
  topology.nodes = {{0, 1, 2, 3, 4, 5, 6, 7, 8}};
  topology.hosts = std::vector<std::string>(9, "a");
  return topology;
}

inline Topology TwoRanks() {
  Topology topology = OneNode();
  topology.size = 2;
  topology.nodes = {{0, 1}};
  return topology;
}

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_RUNTIME_SINGLE_CONTROLLER_H_
