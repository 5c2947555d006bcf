// The executor against a transport that only writes down what it is asked for.
#include "runtime/executor.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tf_hvd {
namespace {

using Request = tf_hvd::Run;  // not the test's own member of that name

class FakeTransport final : public DataTransport {
 public:
  Status Allreduce(const std::vector<int>&, const std::vector<Span>& spans,
                   const ReduceOptions& options, const Pump& pump) override {
    std::string text =
        std::string(NameOf(options.op)) + " " + NameOf(options.dtype);
    for (const Span& span : spans) {
      text += " " + std::to_string(span.count);
      if (span.input == nullptr && span.output == nullptr) text += "z";
    }
    return Called(text, pump);
  }
  Status Allgather(const std::vector<int>&, const void* mine,
                   const std::vector<int64_t>& bytes, void* output,
                   const Pump& pump) override {
    std::string text = "gather";
    for (const int64_t one : bytes) text += " " + std::to_string(one);
    if (mine == nullptr) text += "z";
    // The exchange of first dimensions: this rank's, for all of them.
    if (calls.empty() && bytes[0] > 0) {
      for (size_t i = 0; i < bytes.size(); ++i) {
        const auto* from = static_cast<const char*>(mine);
        std::copy(from, from + bytes[i],
                  static_cast<char*>(output) + i * size_t(bytes[i]));
      }
    }
    return Called(text, pump);
  }
  Status Broadcast(const std::vector<int>&, int root, void*, int64_t bytes,
                   const Pump& pump) override {
    return Called("copy " + std::to_string(root) + " " + std::to_string(bytes),
                  pump);
  }
  Status Reducescatter(const std::vector<int>&, const void*,
                       const std::vector<int64_t>& counts, void*,
                       const ReduceOptions& options,
                       const Pump& pump) override {
    std::string text = std::string("scatter ") + NameOf(options.op) + " " +
                       NameOf(options.dtype);
    for (const int64_t one : counts) text += " " + std::to_string(one);
    return Called(text, pump);
  }
  Status Alltoall(const std::vector<int>&, const void* input,
                  const std::vector<int64_t>& send_bytes, void* output,
                  const std::vector<int64_t>& receive_bytes,
                  const Pump& pump) override {
    std::string text = "all";
    for (const int64_t one : send_bytes) text += " " + std::to_string(one);
    text += " to";
    for (const int64_t one : receive_bytes) text += " " + std::to_string(one);
    // The exchange of splits: as if the others sent what they get.
    if (calls.empty()) {
      std::memcpy(output, input, send_bytes.size() * sizeof(int64_t));
    }
    return Called(text, pump);
  }
  bool memory_in_use() const override { return in_use; }

  std::vector<std::string> calls;
  Status answer;
  bool in_use = false;

 private:
  Status Called(const std::string& text, const Pump& pump) {
    calls.push_back(text);
    if (const Status status = pump(); !status.ok()) return status;
    return answer;
  }
};

class ExecutorTest : public ::testing::Test, public ExecutorHost {
 protected:
  static constexpr int64_t kNoLimit = int64_t{1} << 60;
  static constexpr int64_t kThreshold = 1000;

  void Ended(const Key& key, Completion done, const Status& status,
             int32_t value) override {
    ended.push_back(key.second + (status.ok() ? "" : ": " + status.message()));
    values.push_back(value);
    done.Fire(status);
  }

  Request Make(OpKind kind, const std::string& name, int64_t count,
               bool own = true) {
    Request run;
    run.name = name;
    run.record.kind = kind;
    run.record.tensors.push_back({DType::kFloat32, {count}});
    run.ranks = ranks;
    if (!own) return run;
    run.own.emplace();
    run.own->record = run.record;
    run.own->tensors.push_back({memory, memory, count, count});
    run.own->done = Completion([this](const Status&, int32_t) { ++fired; });
    return run;
  }
  Request Sum(const std::string& name, int64_t count, bool own = true) {
    return Make(OpKind::kAllreduce, name, count, own);
  }
  static std::vector<Request> Frame(Request a) {
    std::vector<Request> frame;
    frame.push_back(std::move(a));
    return frame;
  }
  static std::vector<Request> Frame(Request a, Request b) {
    std::vector<Request> frame = Frame(std::move(a));
    frame.push_back(std::move(b));
    return frame;
  }

  // Runs until nothing is left.
  void RunAll() {
    Status status;
    while (executor.RunNext(kNoLimit, pump, &status)) {
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }

  using Texts = std::vector<std::string>;

  float memory[4096] = {};
  std::shared_ptr<const std::vector<int>> ranks =
      std::make_shared<const std::vector<int>>(std::vector<int>{0, 1});
  FakeTransport data;
  Pump pump = [] { return Status::Ok(); };
  Texts ended;
  std::vector<int32_t> values;
  int fired = 0;
  Executor executor{&data, kThreshold, this};
};

TEST_F(ExecutorTest, NothingToDo) {
  Status status;
  EXPECT_FALSE(executor.HasWork());
  EXPECT_FALSE(executor.CanRun());
  EXPECT_EQ(executor.Backlog(), 0u);
  EXPECT_FALSE(executor.RunNext(kNoLimit, pump, &status));
}

TEST_F(ExecutorTest, OneGroupAtATimeInOrder) {
  executor.Add(Frame(Sum("a", 1), Make(OpKind::kBroadcast, "b", 2)));
  executor.Add(Frame(Sum("c", 3)));
  EXPECT_TRUE(executor.HasWork());
  EXPECT_EQ(executor.Backlog(), 2u);
  Status status;
  EXPECT_TRUE(executor.RunNext(kNoLimit, pump, &status));
  EXPECT_EQ(ended, (Texts{"a"}));
  RunAll();
  EXPECT_EQ(data.calls, (Texts{"Sum float32 1", "copy -1 8", "Sum float32 3"}));
  EXPECT_EQ(ended, (Texts{"a", "b", "c"}));
  EXPECT_FALSE(executor.HasWork());
  EXPECT_EQ(fired, 3);
}

// Fused within a frame, never across frames.
TEST_F(ExecutorTest, FusesWithinAFrame) {
  executor.Add(Frame(Sum("a", 1), Sum("b", 2)));
  executor.Add(Frame(Sum("c", 3)));
  RunAll();
  EXPECT_EQ(data.calls, (Texts{"Sum float32 1 2", "Sum float32 3"}));
  EXPECT_EQ(ended, (Texts{"a", "b", "c"}));
}

TEST_F(ExecutorTest, AGroupOfSeveralTypesIsSeveralReductions) {
  Request group = Sum("g", 1);
  group.record.tensors = {
      {DType::kInt32, {5}}, {DType::kFloat32, {6}}, {DType::kInt32, {}}};
  group.own->tensors = {
      {memory, memory, 5, 0}, {memory, memory, 6, 0}, {memory, memory, 1, 0}};
  executor.Add(Frame(std::move(group), Sum("b", 2)));
  RunAll();
  EXPECT_EQ(data.calls,
            (Texts{"Sum int32 5 1", "Sum float32 6", "Sum float32 2"}));
}

TEST_F(ExecutorTest, JoinedRanksGiveZerosAndEndNothing) {
  executor.Add(Frame(Sum("a", 4, /*own=*/false), Sum("b", 5)));
  RunAll();
  EXPECT_EQ(data.calls, (Texts{"Sum float32 4z 5"}));
  EXPECT_EQ(ended, (Texts{"b"}));
}

TEST_F(ExecutorTest, ErrorsRunNothing) {
  Request wrong = Sum("a", 1);
  wrong.error = "mismatch in a";
  executor.Add(Frame(std::move(wrong), Sum("b", 1)));
  RunAll();
  EXPECT_EQ(data.calls, (Texts{"Sum float32 1"}));
  EXPECT_EQ(ended, (Texts{"a: mismatch in a", "b"}));
}

TEST_F(ExecutorTest, KindsWithoutDataGiveTheirValue) {
  Request join = Make(OpKind::kJoin, "j", 0);
  join.last = 7;
  executor.Add(Frame(std::move(join), Make(OpKind::kBarrier, "b", 0)));
  RunAll();
  EXPECT_TRUE(data.calls.empty());
  EXPECT_EQ(values, (std::vector<int32_t>{7, 0}));
}

TEST_F(ExecutorTest, AllgatherAsksForMemoryWhenTheRowsAreKnown) {
  Request gather = Make(OpKind::kAllgather, "g", 3);
  gather.record.tensors[0].shape = {-1, 2};
  gather.own->tensors[0].count = 6;
  std::vector<int64_t> asked;
  gather.own->allocate = [&](size_t tensor, const std::vector<int64_t>& dims,
                             void** output) {
    EXPECT_EQ(tensor, 0u);
    asked = dims;
    *output = memory;
    return Status::Ok();
  };
  executor.Add(Frame(std::move(gather)));
  RunAll();
  EXPECT_EQ(asked, (std::vector<int64_t>{3, 3}));
  EXPECT_EQ(data.calls, (Texts{"gather 8 8", "gather 24 24"}));
  EXPECT_EQ(ended, (Texts{"g"}));
}

// A rank that has joined takes the rows of the others, and gives none.
TEST_F(ExecutorTest, AllgatherOfAJoinedRankPassesOnRows) {
  Request gather = Make(OpKind::kAllgather, "g", 0, /*own=*/false);
  gather.record.tensors = {{DType::kFloat32, {-1, 2}}, {DType::kInt64, {-1}}};
  executor.Add(Frame(std::move(gather), Sum("a", 1)));
  RunAll();
  EXPECT_EQ(data.calls, (Texts{"gather 16 16", "gather 0 0z", "gather 0 0z",
                               "Sum float32 1"}));
  EXPECT_EQ(ended, (Texts{"a"}));
}

TEST_F(ExecutorTest, AllgatherOfAGroup) {
  Request gather = Make(OpKind::kAllgather, "g", 3);
  gather.record.tensors = {{DType::kFloat32, {-1}}, {DType::kInt64, {-1, 5}}};
  gather.own->record = gather.record;
  gather.own->tensors = {{memory, nullptr, 3, 3}, {memory, nullptr, 10, 2}};
  Texts asked;
  gather.own->allocate = [&](size_t tensor, const std::vector<int64_t>& dims,
                             void** output) {
    asked.push_back(std::to_string(tensor) + ": " + std::to_string(dims[0]) +
                    " " + std::to_string(dims[1]));
    *output = memory;
    return Status::Ok();
  };
  executor.Add(Frame(std::move(gather)));
  RunAll();
  // One exchange of first dimensions for the whole group.
  EXPECT_EQ(data.calls,
            (Texts{"gather 16 16", "gather 12 12", "gather 80 80"}));
  EXPECT_EQ(asked, (Texts{"0: 3 3", "1: 2 2"}));
}

TEST_F(ExecutorTest, AlltoallAsksForMemoryWhenTheSplitsAreKnown) {
  Request all = Make(OpKind::kAlltoall, "a", 12);
  all.record.tensors[0].shape = {-1, 3};
  all.own->splits = {1, 3};
  std::vector<int64_t> asked;
  all.own->allocate = [&](size_t, const std::vector<int64_t>& rows,
                          void** output) {
    asked = rows;
    *output = memory;
    return Status::Ok();
  };
  executor.Add(Frame(std::move(all)));
  RunAll();
  EXPECT_EQ(asked, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(data.calls, (Texts{"all 8 8 to 8 8", "all 12 36 to 12 36"}));
  EXPECT_EQ(ended, (Texts{"a"}));
}

TEST_F(ExecutorTest, NoMemoryEndsTheJob) {
  for (const OpKind kind : {OpKind::kAllgather, OpKind::kAlltoall}) {
    Executor one(&data, kThreshold, this);
    Request run = Make(kind, "x", 4);
    run.record.tensors[0].shape = {-1};
    run.own->splits = {2, 2};
    run.own->allocate = [](size_t, const std::vector<int64_t>&, void**) {
      return Internal("no memory");
    };
    one.Add(Frame(std::move(run)));
    data.calls.clear();
    Status status;
    EXPECT_TRUE(one.RunNext(kNoLimit, pump, &status));
    EXPECT_EQ(status.message(), std::string(NameOf(kind)) + " 'x': no memory");
    EXPECT_EQ(data.calls.size(), 1u);
    one.Fail(status);
  }
}

// Seven rows for two ranks: the first has one more. Never fused.
TEST_F(ExecutorTest, ReducescatterGivesTheRestToTheFirst) {
  Request group = Make(OpKind::kReducescatter, "g", 0);
  group.record.reduce_op = ReduceOp::kAverage;
  group.record.tensors = {{DType::kFloat32, {7, 3}}, {DType::kInt32, {0, 2}}};
  group.own->tensors = {{memory, memory, 21, 0}, {memory, memory, 0, 0}};
  executor.Add(Frame(std::move(group), Make(OpKind::kReducescatter, "s", 1)));
  RunAll();
  EXPECT_EQ(data.calls,
            (Texts{"scatter Average float32 12 9", "scatter Average int32 0 0",
                   "scatter Sum float32 1 0"}));
  EXPECT_EQ(ended, (Texts{"g", "s"}));
}

// What is larger than a caller may run itself waits for the background.
TEST_F(ExecutorTest, LimitOfACaller) {
  executor.Add(Frame(Sum("a", 100)));
  Status status;
  EXPECT_FALSE(executor.RunNext(399, pump, &status));
  EXPECT_TRUE(executor.CanRun());
  EXPECT_TRUE(executor.RunNext(400, pump, &status));
}

// The rows of the other ranks count too, though the record does not tell them.
TEST_F(ExecutorTest, AllgatherCountsTheRowsOfAll) {
  Request gather = Make(OpKind::kAllgather, "g", 100);
  gather.record.tensors[0].shape = {-1};
  gather.own->record = gather.record;
  executor.Add(Frame(std::move(gather)));
  Status status;
  EXPECT_FALSE(executor.RunNext(799, pump, &status));
  EXPECT_TRUE(data.calls.empty());
}

TEST_F(ExecutorTest, FramesMayArriveWhileOneRuns) {
  bool added = false;
  pump = [&] {
    if (!std::exchange(added, true)) {
      EXPECT_EQ(executor.Backlog(), 0u);
      for (int i = 0; i < 50; ++i) {
        executor.Add(Frame(Sum("late" + std::to_string(i), 1)));
      }
      EXPECT_EQ(executor.Backlog(), 50u);
      Status status;  // not from inside
      EXPECT_FALSE(executor.RunNext(kNoLimit, pump, &status));
    }
    return Status::Ok();
  };
  executor.Add(Frame(Sum("a", 1)));
  RunAll();
  EXPECT_EQ(ended.size(), 51u);
  EXPECT_EQ(ended[0], "a");
  EXPECT_EQ(ended[50], "late49");
}

TEST_F(ExecutorTest, AfterAFailureNothingRunsUntilFail) {
  executor.Add(Frame(Sum("a", 1), Sum("b", 1)));
  executor.Add(Frame(Sum("c", 1)));
  data.answer = Internal("wire cut");
  Status status;
  EXPECT_TRUE(executor.RunNext(kNoLimit, pump, &status));
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_EQ(status.message(), "allreduce 'a': wire cut");
  EXPECT_TRUE(ended.empty());
  EXPECT_TRUE(executor.HasWork());
  EXPECT_FALSE(executor.CanRun());
  EXPECT_FALSE(executor.RunNext(kNoLimit, pump, &status));
  executor.Fail(Aborted("gone"));
  EXPECT_EQ(ended, (Texts{"a: gone", "b: gone", "c: gone"}));
  EXPECT_FALSE(executor.HasWork());
  EXPECT_EQ(fired, 3);
}

TEST_F(ExecutorTest, PumpEndsTheWait) {
  pump = [] { return Aborted("rank 1 died"); };
  executor.Add(Frame(Sum("a", 1)));
  Status status;
  EXPECT_TRUE(executor.RunNext(kNoLimit, pump, &status));
  EXPECT_EQ(status.code(), StatusCode::kAborted);
}

// Memory that a transport may still touch outlives the executor.
TEST_F(ExecutorTest, MemoryInUseIsNeverGivenBack) {
  for (const bool in_use : {false, true}) {
    bool given_back = false;
    {
      Executor one(&data, kThreshold, this);
      Request run = Sum("a", 1);
      run.own->keepalive =
          std::shared_ptr<void>(memory, [&](void*) { given_back = true; });
      one.Add(Frame(std::move(run)));
      data.in_use = in_use;
      one.Fail(Aborted("gone"));
      EXPECT_EQ(given_back, !in_use);
    }
    EXPECT_EQ(given_back, !in_use);
  }
}

}  // namespace
}  // namespace tf_hvd
