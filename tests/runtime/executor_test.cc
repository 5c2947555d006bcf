// The executor with a backend that only records its calls.
#include "runtime/execution/executor.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/fake_backend.h"
#include "tests/runtime/response_request.h"

namespace tf_hvd {
namespace {

class ExecutorTest : public ::testing::Test, public ExecutorHost {
 protected:
  static constexpr int64_t kThreshold = 1000;

  void Ended(const Key& key, Completion done, const Status& status,
             int32_t value) override {
    ended.push_back(key.second + (status.ok() ? "" : ": " + status.message()));
    values.push_back(value);
    done.Fire(status);
  }

  Response Make(OpKind kind, const std::string& name, int64_t count,
                bool own = true) {
    Request request;
    request.kind = kind;
    request.tensors.push_back({DType::kFloat32, {count}});
    Response run;
    run.key.second = name;
    run.request = SharedRequest(std::move(request));
    run.ranks = ranks;
    if (!own) return run;
    run.own.emplace();
    run.own->tensors.push_back({memory, memory, count});
    run.own->rows = {count};
    run.own->done = Completion([this](const Status&, int32_t) { ++fired; });
    return run;
  }
  Response Sum(const std::string& name, int64_t count, bool own = true) {
    return Make(OpKind::kAllreduce, name, count, own);
  }
  static std::vector<Response> Batch(Response a) {
    std::vector<Response> batch;
    batch.push_back(std::move(a));
    return batch;
  }
  static std::vector<Response> Batch(Response a, Response b) {
    std::vector<Response> batch = Batch(std::move(a));
    batch.push_back(std::move(b));
    return batch;
  }

  // Runs until no work is left.
  void RunAll() {
    Status status;
    while (executor.Progress(&status)) {
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }

  using Texts = std::vector<std::string>;

  float memory[4096] = {};
  SetMembers ranks = MembersOf({0, 1});
  FakeBackend data;
  Texts ended;
  std::vector<int32_t> values;
  int fired = 0;
  Executor executor{{&data}, kThreshold, this};
};

TEST_F(ExecutorTest, NothingToDo) {
  Status status;
  EXPECT_FALSE(executor.HasWork());
  EXPECT_FALSE(executor.CanRun());
  EXPECT_EQ(executor.Backlog(), 0u);
  EXPECT_FALSE(executor.Progress(&status));
}

TEST_F(ExecutorTest, StartsInOrder) {
  executor.Add(Batch(Sum("a", 1), Make(OpKind::kBroadcast, "b", 2)));
  executor.Add(Batch(Sum("c", 3)));
  EXPECT_TRUE(executor.HasWork());
  EXPECT_EQ(executor.Backlog(), 2u);
  RunAll();
  EXPECT_EQ(data.calls, (Texts{"Sum float32 1", "copy 0 8", "Sum float32 3"}));
  EXPECT_EQ(data.numbers, (std::vector<uint64_t>{0, 1, 2}));
  EXPECT_EQ(ended, (Texts{"a", "b", "c"}));
  EXPECT_FALSE(executor.HasWork());
  EXPECT_EQ(fired, 3);
}

// All operations refer to the list that the responses brought.
TEST_F(ExecutorTest, MemberListIsShared) {
  executor.Add(Batch(Sum("a", 1), Make(OpKind::kAllgather, "b", 2, false)));
  executor.Add(Batch(Sum("c", 1)));
  RunAll();
  EXPECT_EQ(data.calls.size(), 4u);
  EXPECT_EQ(data.members, (std::set<SetMembers>{ranks}));
}

TEST_F(ExecutorTest, OperationsEndInAnyOrder) {
  for (const char* name : {"a", "b", "c"}) executor.Add(Batch(Sum(name, 1)));
  data.held = {0, 2};
  RunAll();
  EXPECT_EQ(ended, (Texts{"b"}));
  EXPECT_TRUE(executor.Moving());
  EXPECT_EQ(executor.awaited(), 1);
  data.held = {0};
  RunAll();
  EXPECT_EQ(ended, (Texts{"b", "c"}));
  data.held = {};
  RunAll();
  EXPECT_EQ(ended, (Texts{"b", "c", "a"}));
  EXPECT_EQ(executor.awaited(), -1);
}

TEST_F(ExecutorTest, BusyOperationHoldsUpLaterOnes) {
  for (const char* name : {"a", "b"}) executor.Add(Batch(Sum(name, 1)));
  data.busy = data.held = {0};
  Status status;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(executor.Progress(&status));
    EXPECT_EQ(data.calls.size(), 1u);
  }
  data.busy = {};  // now it waits
  RunAll();
  EXPECT_EQ(ended, (Texts{"b"}));
}

TEST_F(ExecutorTest, RespectsTheBackendsWindow) {
  data.room = 2;
  data.held = {0, 1, 2, 3};
  for (const char* name : {"a", "b", "c", "d"}) {
    executor.Add(Batch(Sum(name, 1)));
  }
  RunAll();
  EXPECT_EQ(data.calls.size(), 2u);
  EXPECT_EQ(executor.Backlog(), 1u);  // the third waits for room
  data.held = {0, 2, 3};
  RunAll();
  EXPECT_EQ(data.calls.size(), 3u);
  EXPECT_EQ(ended, (Texts{"b"}));
}

// The second operation of an exchange is numbered when the first has ended.
// Later collectives must wait, or ranks would number in different orders.
TEST_F(ExecutorTest, LaterOperationsWaitForAnExchange) {
  Response gather = Make(OpKind::kAllgather, "g", 3);
  SetTensors(&gather, {{DType::kFloat32, {-1}}});
  gather.own->allocate = [&](size_t, const std::vector<int64_t>&, void** to) {
    *to = memory;
    return Status::Ok();
  };
  data.held = {0, 1};
  executor.Add(Batch(std::move(gather), Sum("a", 1)));
  RunAll();
  EXPECT_EQ(data.calls, (Texts{"gather 8 8"}));
  data.held = {1};
  RunAll();
  EXPECT_EQ(data.calls, (Texts{"gather 8 8", "gather 12 12", "Sum float32 1"}));
  EXPECT_EQ(ended, (Texts{"a"}));
}

TEST_F(ExecutorTest, EachSetHasItsOwnNumbers) {
  Response other = Sum("o", 1);
  other.key.first = 5;
  executor.Add(Batch(Sum("a", 1), std::move(other)));
  executor.Add(Batch(Sum("b", 1)));
  RunAll();
  EXPECT_EQ(data.numbers, (std::vector<uint64_t>{0, 0, 1}));
}

TEST_F(ExecutorTest, UnservedOperationIsABug) {
  data.serves_broadcast = false;
  executor.Add(Batch(Make(OpKind::kBroadcast, "b", 1)));
  Status status;
  EXPECT_TRUE(executor.Progress(&status));
  EXPECT_EQ(status.code(), StatusCode::kInternal);
}

// Fused within a batch, never across batches.
TEST_F(ExecutorTest, FusesWithinAFrame) {
  executor.Add(Batch(Sum("a", 1), Sum("b", 2)));
  executor.Add(Batch(Sum("c", 3)));
  RunAll();
  EXPECT_EQ(data.calls, (Texts{"Sum float32 1 2", "Sum float32 3"}));
  EXPECT_EQ(ended, (Texts{"a", "b", "c"}));
}

TEST_F(ExecutorTest, GroupOfSeveralTypesIsSeveralReductions) {
  Response group = Sum("g", 1);
  SetTensors(
      &group,
      {{DType::kInt32, {5}}, {DType::kFloat32, {6}}, {DType::kInt32, {}}});
  group.own->tensors = {
      {memory, memory, 5}, {memory, memory, 6}, {memory, memory, 1}};
  executor.Add(Batch(std::move(group), Sum("b", 2)));
  RunAll();
  EXPECT_EQ(data.calls,
            (Texts{"Sum int32 5 1", "Sum float32 6", "Sum float32 2"}));
}

TEST_F(ExecutorTest, JoinedRanksContributeZeros) {
  executor.Add(Batch(Sum("a", 4, /*own=*/false), Sum("b", 5)));
  RunAll();
  EXPECT_EQ(data.calls, (Texts{"Sum float32 4z 5"}));
  EXPECT_EQ(ended, (Texts{"b"}));
}

TEST_F(ExecutorTest, ErrorsRunNothing) {
  Response wrong = Sum("a", 1);
  wrong.error = "mismatch in a";
  executor.Add(Batch(std::move(wrong), Sum("b", 1)));
  RunAll();
  EXPECT_EQ(data.calls, (Texts{"Sum float32 1"}));
  EXPECT_EQ(ended, (Texts{"a: mismatch in a", "b"}));
}

TEST_F(ExecutorTest, KindsWithoutDataReturnTheirValue) {
  Response join = Make(OpKind::kJoin, "j", 0);
  join.value = 7;
  executor.Add(Batch(std::move(join), Make(OpKind::kBarrier, "b", 0)));
  RunAll();
  EXPECT_TRUE(data.calls.empty());
  EXPECT_EQ(values, (std::vector<int32_t>{7, 0}));
}

TEST_F(ExecutorTest, BackendsAreNotifiedOfSetsInOrder) {
  const auto set_change = [this](OpKind kind, const std::string& name) {
    Response response = Make(kind, name, 0);
    ChangeRequest(&response, [](Request* request) {
      request->removed_set = 5;
      request->ranks = {0, 2, 3};
    });
    response.value = 5;
    return response;
  };
  Response refused = set_change(OpKind::kAddSet, "c");
  refused.error = "no";
  executor.Add(Batch(Sum("a", 1), set_change(OpKind::kAddSet, "b")));
  executor.Add(Batch(std::move(refused), Sum("d", 2)));
  executor.Add(Batch(set_change(OpKind::kRemoveSet, "e"), Sum("f", 3)));
  RunAll();
  EXPECT_EQ(data.calls, (Texts{"Sum float32 1", "add 5 of 3", "Sum float32 2",
                               "remove 5", "Sum float32 3"}));
  EXPECT_EQ(ended, (Texts{"a", "b", "c: no", "d", "e", "f"}));
}

TEST_F(ExecutorTest, UnsupportedSetEndsTheJob) {
  data.answer = Internal("no communicator");
  executor.Add(Batch(Make(OpKind::kAddSet, "a", 0), Sum("b", 1)));
  Status status;
  executor.Progress(&status);
  EXPECT_NE(status.message().find("no communicator"), std::string::npos);
  executor.Fail(status);
  EXPECT_EQ(ended.size(), 2u) << "each once";
}

TEST_F(ExecutorTest, AllgatherAllocatesWhenTheRowsAreKnown) {
  Response gather = Make(OpKind::kAllgather, "g", 3);
  SetTensors(&gather, {{DType::kFloat32, {-1, 2}}});
  gather.own->tensors[0].count = 6;
  std::vector<int64_t> asked;
  gather.own->allocate = [&](size_t tensor, const std::vector<int64_t>& dims,
                             void** output) {
    EXPECT_EQ(tensor, 0u);
    asked = dims;
    *output = memory;
    return Status::Ok();
  };
  executor.Add(Batch(std::move(gather)));
  RunAll();
  EXPECT_EQ(asked, (std::vector<int64_t>{3, 3}));
  EXPECT_EQ(data.calls, (Texts{"gather 8 8", "gather 24 24"}));
  EXPECT_EQ(ended, (Texts{"g"}));
}

// A joined rank receives the others' rows, and contributes none.
TEST_F(ExecutorTest, AllgatherOnAJoinedRankPassesOnRows) {
  Response gather = Make(OpKind::kAllgather, "g", 0, /*own=*/false);
  SetTensors(&gather, {{DType::kFloat32, {-1, 2}}, {DType::kInt64, {-1}}});
  executor.Add(Batch(std::move(gather), Sum("a", 1)));
  RunAll();
  EXPECT_EQ(data.calls,
            (Texts{"gather 16 16", "gather 0z 0z 0z 0z", "Sum float32 1"}));
  EXPECT_EQ(ended, (Texts{"a"}));
}

TEST_F(ExecutorTest, AllgatherOfAGroup) {
  Response gather = Make(OpKind::kAllgather, "g", 3);
  SetTensors(&gather, {{DType::kFloat32, {-1}}, {DType::kInt64, {-1, 5}}});
  gather.own->tensors = {{memory, nullptr, 3}, {memory, nullptr, 10}};
  gather.own->rows = {3, 2};
  Texts asked;
  gather.own->allocate = [&](size_t tensor, const std::vector<int64_t>& dims,
                             void** output) {
    asked.push_back(std::to_string(tensor) + ": " + std::to_string(dims[0]) +
                    " " + std::to_string(dims[1]));
    *output = memory;
    return Status::Ok();
  };
  executor.Add(Batch(std::move(gather)));
  RunAll();
  // One exchange of first dimensions for the whole group.
  EXPECT_EQ(data.calls, (Texts{"gather 16 16", "gather 12 80 12 80"}));
  EXPECT_EQ(asked, (Texts{"0: 3 3", "1: 2 2"}));
}

TEST_F(ExecutorTest, BroadcastOfAGroupIsOneOperation) {
  Response group = Make(OpKind::kBroadcast, "g", 3);
  SetTensors(&group, {{DType::kFloat32, {3}}, {DType::kInt64, {2}}});
  group.own->tensors = {{memory, memory, 3}, {memory, memory, 2}};
  executor.Add(Batch(std::move(group)));
  RunAll();
  EXPECT_EQ(data.calls, (Texts{"copy 0 12 16"}));
}

TEST_F(ExecutorTest, AlltoallAllocatesWhenTheSplitsAreKnown) {
  Response all = Make(OpKind::kAlltoall, "a", 12);
  SetTensors(&all, {{DType::kFloat32, {-1, 3}}});
  all.own->rows = {1, 3};
  std::vector<int64_t> asked;
  all.own->allocate = [&](size_t, const std::vector<int64_t>& rows,
                          void** output) {
    asked = rows;
    *output = memory;
    return Status::Ok();
  };
  executor.Add(Batch(std::move(all)));
  RunAll();
  EXPECT_EQ(asked, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(data.calls, (Texts{"all 8 8 to 8 8", "all 12 36 to 12 36"}));
  EXPECT_EQ(ended, (Texts{"a"}));
}

TEST_F(ExecutorTest, OutOfMemoryEndsTheJob) {
  for (const OpKind kind : {OpKind::kAllgather, OpKind::kAlltoall}) {
    Executor one({&data}, kThreshold, this);
    Response run = Make(kind, "x", 4);
    SetTensors(&run, {{DType::kFloat32, {-1}}});
    run.own->rows.assign(kind == OpKind::kAllgather ? 1 : 2, 2);
    run.own->allocate = [](size_t, const std::vector<int64_t>&, void**) {
      return Internal("no memory");
    };
    one.Add(Batch(std::move(run)));
    data.calls.clear();
    Status status;
    EXPECT_TRUE(one.Progress(&status));
    EXPECT_EQ(status.message(), std::string(NameOf(kind)) + " 'x': no memory");
    EXPECT_EQ(data.calls.size(), 1u);
    one.Fail(status);
  }
}

// Seven rows for two ranks: the first gets one more. Tensors of one type are
// one operation; groups are never fused with others.
TEST_F(ExecutorTest, ReducescatterGivesTheRemainderToTheFirst) {
  Response group = Make(OpKind::kReducescatter, "g", 0);
  ChangeRequest(&group, [](Request* request) {
    request->reduce_op = ReduceOp::kAverage;
  });
  SetTensors(&group, {{DType::kFloat32, {7, 3}},
                      {DType::kInt32, {0, 2}},
                      {DType::kFloat32, {3}}});
  group.own->tensors = {
      {memory, memory, 21}, {memory, memory, 0}, {memory, memory, 3}};
  executor.Add(Batch(std::move(group), Make(OpKind::kReducescatter, "s", 1)));
  RunAll();
  EXPECT_EQ(data.calls, (Texts{"scatter Average int32 0 0",
                               "scatter Average float32 12 2 9 1",
                               "scatter Sum float32 1 0"}));
  EXPECT_EQ(ended, (Texts{"g", "s"}));
}

TEST_F(ExecutorTest, AfterAFailureNothingRunsUntilFail) {
  executor.Add(Batch(Sum("a", 1), Sum("b", 1)));
  executor.Add(Batch(Sum("c", 1)));
  data.answer = Internal("wire cut");
  Status status;
  EXPECT_TRUE(executor.Progress(&status));
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_EQ(status.message(), "allreduce 'a': wire cut");
  EXPECT_TRUE(ended.empty());
  EXPECT_TRUE(executor.HasWork());
  EXPECT_FALSE(executor.CanRun());
  EXPECT_FALSE(executor.Progress(&status));
  executor.Fail(Aborted("gone"));
  EXPECT_EQ(ended, (Texts{"a: gone", "b: gone", "c: gone"}));
  EXPECT_FALSE(executor.HasWork());
  EXPECT_EQ(fired, 3);
}

// Memory that a backend may still access outlives the executor: the caller's,
// and memory inside an operation, such as a table of rows or a sum.
TEST_F(ExecutorTest, MemoryInUseIsNeverFreed) {
  for (const bool in_use : {false, true}) {
    bool given_back = false;
    data.destroyed = 0;
    {
      Executor one({&data}, kThreshold, this);
      Response run = Sum("a", 1);
      run.own->keepalive =
          std::shared_ptr<void>(memory, [&](void*) { given_back = true; });
      one.Add(Batch(std::move(run)));
      data.held = {0};
      Status status;
      EXPECT_TRUE(one.Progress(&status));
      data.in_use = in_use;
      one.Fail(Aborted("gone"));
      EXPECT_EQ(given_back, !in_use);
    }
    EXPECT_EQ(given_back, !in_use);
    EXPECT_EQ(data.destroyed, in_use ? 0 : 1);
  }
}

// The five seconds after which a leaving rank gives up, and the stall limit,
// count from the last progress.
TEST_F(ExecutorTest, ComputingDeviceDoesNotCountAsWaiting) {
  data.held = {0};
  data.computing = true;
  executor.Add(Batch(Sum("a", 1)));
  Status status;
  executor.Progress(&status);
  const uint64_t moved = executor.moved();
  EXPECT_FALSE(executor.Progress(&status));  // no polling is needed
  EXPECT_GT(executor.moved(), moved);
  data.computing = false;
  const uint64_t later = executor.moved();
  EXPECT_FALSE(executor.Progress(&status));
  EXPECT_EQ(executor.moved(), later);
}

}  // namespace
}  // namespace tf_hvd
