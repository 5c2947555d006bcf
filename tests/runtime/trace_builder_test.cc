#include "runtime/events/trace_builder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "tests/runtime/recorded_call.h"

namespace tf_hvd {
namespace {

struct Seen {
  std::string name;
  int64_t begin_ns;
  int64_t end_ns;
  std::map<std::string, int64_t> numbers;
  std::map<std::string, std::string> texts;
};

// Records its calls.
class Collected final : public TraceForm {
 public:
  void Begin(const TraceHead& head, std::string* /*out*/) override {
    rank = head.rank;
    names.clear();
  }
  void Track(int track, std::string_view name, std::string* /*out*/) override {
    names[track] = name;
  }
  void Spans(int track, const std::vector<TraceSpan>& spans,
             std::string* /*out*/) override {
    ASSERT_EQ(names.count(track), 1u);
    std::vector<Seen> group;
    for (const TraceSpan& span : spans) {
      Seen one{std::string(span.name), span.begin_ns, span.end_ns, {}, {}};
      for (const TraceValue& value : span.values) {
        if (const auto* number = std::get_if<int64_t>(&value.value)) {
          one.numbers[std::string(value.name)] = *number;
        } else {
          one.texts[std::string(value.name)] =
              std::get<std::string_view>(value.value);
        }
      }
      group.push_back(std::move(one));
    }
    groups[track].push_back(std::move(group));
  }
  void Instant(int track, std::string_view /*name*/, int64_t /*time_ns*/,
               std::string* /*out*/) override {
    ++instants[track];
  }
  void Counter(std::string_view name, std::string_view /*unit*/,
               int64_t time_ns, int64_t value, std::string* /*out*/) override {
    counters[std::string(name)].emplace_back(time_ns, value);
  }

  // All groups on tracks with that name.
  std::vector<std::vector<Seen>> On(const std::string& name) const {
    std::vector<std::vector<Seen>> found;
    for (const auto& [track, its] : groups) {
      if (names.at(track) == name) {
        found.insert(found.end(), its.begin(), its.end());
      }
    }
    return found;
  }

  int rank = -1;
  std::map<int, std::string> names;
  std::map<int, std::vector<std::vector<Seen>>> groups;
  std::map<int, int> instants;
  std::map<std::string, std::vector<std::pair<int64_t, int64_t>>> counters;
};

class TraceBuilderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    recorder_ = Recorder::Make({}, {3, 8, 3, -1, "host3", "a job"}, &why);
    ASSERT_NE(recorder_, nullptr) << why;
    phases_ = recorder_->phases();
    phases_->Start();
    Make();
  }

  void Make(bool mark_cycles = false) {
    TraceHead head;
    head.rank = 3;
    builder_ = std::make_unique<TraceBuilder>(head, recorder_.get(), phases_,
                                              &form_, kTraceNames, mark_cycles);
    builder_->Begin(&out_);
  }

  CallRecord Call(std::string_view name, int64_t bytes = 8,
                  OpKind kind = OpKind::kAllreduce) {
    return recorder_->Add(CallOf(std::string(name), bytes, kind));
  }
  void Build() { builder_->Build(0, 0, &out_); }
  // Counters are written with a delay.
  void BuildLater() {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    Build();
  }

  std::unique_ptr<Recorder> recorder_;
  PhaseLog* phases_ = nullptr;
  Collected form_;
  std::string out_;
  std::unique_ptr<TraceBuilder> builder_;
};

TEST_F(TraceBuilderTest, EndedCallIsShownWithItsOperation) {
  CallRecord record = Call("grad_1", 4096);
  const int64_t agreed = NowNs();
  record.Agreed(1, 6, agreed);
  record.Started(1, agreed + 10);
  record.MovesBy("shm");
  Build();
  EXPECT_TRUE(form_.groups.empty());  // it has not ended
  PhaseTimer timer(phases_, 1);
  timer.Enter(agreed + 10);
  timer.Did(Phase::kPack, agreed + 20'000);
  timer.Exit(6, agreed + 20'000);
  timer.Enter(agreed + 220'000);
  timer.Did(Phase::kReduce, agreed + 300'000);
  timer.Flush();
  while (NowNs() < agreed + 300'000) std::this_thread::yield();
  record.Ended(Status::Ok());
  Build();

  const auto calls = form_.On("agreement");
  ASSERT_EQ(calls.size(), 1u);
  const auto& call = calls[0];
  ASSERT_EQ(call.size(), 3u);
  EXPECT_EQ(call[0].name, "grad_1");
  EXPECT_EQ(call[0].numbers.at("bytes"), 4096);
  EXPECT_EQ(call[0].numbers.at("last_rank"), 6);
  EXPECT_EQ(call[0].numbers.at("operation"), 1);
  EXPECT_EQ(call[1].name, "agreement on allreduce");
  EXPECT_EQ(call[1].end_ns, agreed);
  EXPECT_EQ(call[2].name, "queue");
  EXPECT_EQ(call[2].end_ns, agreed + 10);

  const auto operations = form_.On("shm");
  ASSERT_EQ(operations.size(), 1u);
  const auto& operation = operations[0];
  ASSERT_EQ(operation.size(), 4u);
  EXPECT_EQ(operation[0].name, "ALLREDUCE");
  EXPECT_EQ(operation[0].numbers.at("calls"), 1);
  EXPECT_EQ(operation[1].name, "pack");
  EXPECT_EQ(operation[2].name, "waiting for rank 6");
  EXPECT_EQ(operation[2].end_ns - operation[2].begin_ns, 200'000);
  EXPECT_EQ(operation[3].name, "reduce");
}

TEST_F(TraceBuilderTest, FusedCallsAreOneOperationOnceAllHaveEnded) {
  CallRecord first = Call("a", 100);
  CallRecord second = Call("b", 200);
  for (CallRecord* one : {&first, &second}) {
    one->Agreed(1, 0, NowNs());
    one->Started(7, NowNs());
    one->MovesBy("mpi");
  }
  first.Ended(Status::Ok());
  Build();
  EXPECT_EQ(form_.On("agreement").size(), 1u);
  EXPECT_TRUE(form_.On("mpi").empty());
  second.Ended(Status::Ok());
  Build();
  const auto operations = form_.On("mpi");
  ASSERT_EQ(operations.size(), 1u);
  EXPECT_EQ(operations[0][0].numbers.at("calls"), 2);
  EXPECT_EQ(operations[0][0].numbers.at("bytes"), 300);
}

TEST_F(TraceBuilderTest, EarlierCallsAreIgnored) {
  Call("before").Ended(Status::Ok());
  Make();
  Call("after").Ended(Status::Ok());
  Build();
  ASSERT_EQ(form_.On("agreement").size(), 1u);
  EXPECT_EQ(form_.On("agreement")[0][0].name, "after");
}

TEST_F(TraceBuilderTest, OverwrittenCallsAreCounted) {
  for (size_t i = 0; i < kRecordedCalls + 50; ++i) {
    Call("c" + std::to_string(i)).Ended(Status::Ok());
  }
  Build();
  EXPECT_EQ(builder_->dropped(), 50u);
  EXPECT_EQ(form_.On("agreement").size(), kRecordedCalls);
  ASSERT_EQ(form_.counters["events dropped"].size(), 1u);
  EXPECT_EQ(form_.counters["events dropped"][0].second, 50);
}

TEST_F(TraceBuilderTest, StepWaitsFromItsLastCallOn) {
  for (int step = 0; step < 3; ++step) {
    CallRecord first = Call("a");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    CallRecord second = Call("b");
    first.Ended(Status::Ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    second.Ended(Status::Ok());
    Build();
  }
  const auto waits = form_.On("TensorFlow");
  ASSERT_EQ(waits.size(), 2u);  // the last step has not ended
  for (const auto& wait : waits) {
    EXPECT_GE(wait[0].end_ns - wait[0].begin_ns, 5'000'000);
    EXPECT_LT(wait[0].end_ns - wait[0].begin_ns, 5'000'000 + 2'000'000'000);
  }
}

TEST_F(TraceBuilderTest, CyclesAreMarkedOnRequest) {
  Make(true);
  const int64_t now = NowNs();
  for (const int64_t agreed : {now, now, now + 5}) {
    CallRecord record = Call("x" + std::to_string(recorder_->calls()));
    record.Agreed(1, 0, agreed);
    record.Ended(Status::Ok());
  }
  Build();
  int marks = 0;
  for (const auto& [track, count] : form_.instants) marks += count;
  EXPECT_EQ(marks, 2);
}

// Calls that are made, started and ended in any order.
class Program {
 public:
  Program(uint32_t seed, PhaseLog* phases) : random_(seed), phases_(phases) {}

  int Pick(int below) {
    return static_cast<int>(random_() % static_cast<uint32_t>(below));
  }
  std::string Name() { return "name" + std::to_string(Pick(9)); }
  void Submit(CallRecord record) {
    submitted_.push_back({std::move(record), 0});
    ++made_;
  }
  // Starts some of them together.
  void Start() {
    if (submitted_.empty()) return;
    ++operations_;
    const int64_t now = NowNs();
    for (int n = 1 + Pick(static_cast<int>(submitted_.size())); n > 0; --n) {
      Flight one = std::move(submitted_.back());
      submitted_.pop_back();
      one.operation = operations_;
      one.record.Agreed(++order_, Pick(8), now);
      one.record.Started(operations_, now);
      one.record.MovesBy(operations_ % 3 == 0 ? "mpi" : "shm");
      started_.push_back(std::move(one));
    }
    PhaseTimer timer(phases_, operations_);
    timer.Enter(now);
    timer.Did(Phase::kPack, NowNs());
    timer.Flush();
  }
  // Ends all of one operation.
  void End() {
    if (started_.empty()) return;
    const uint64_t ends =
        started_[static_cast<size_t>(Pick(static_cast<int>(started_.size())))]
            .operation;
    const auto kept = std::stable_partition(
        started_.begin(), started_.end(),
        [ends](const Flight& one) { return one.operation != ends; });
    for (auto one = kept; one != started_.end(); ++one) {
      one->record.Ended(Status::Ok());
    }
    started_.erase(kept, started_.end());
  }
  void Abort() {
    for (Flight& one : submitted_) one.record.Ended(Aborted("left"));
    for (Flight& one : started_) one.record.Ended(Aborted("left"));
  }

  size_t made() const { return made_; }
  size_t operations() const { return operations_; }

 private:
  struct Flight {
    CallRecord record;
    uint64_t operation;
  };

  std::mt19937 random_;
  PhaseLog* const phases_;
  std::vector<Flight> submitted_;
  std::vector<Flight> started_;
  uint64_t operations_ = 0;
  int64_t order_ = 0;
  size_t made_ = 0;
};

// Spans on a track are disjoint or nested.
void ExpectNested(const Collected& form) {
  for (const auto& [track, groups] : form.groups) {
    std::vector<std::pair<int64_t, int64_t>> outer;
    for (const auto& group : groups) {
      outer.emplace_back(group[0].begin_ns, group[0].end_ns);
      int64_t until = group[0].begin_ns;
      for (size_t i = 1; i < group.size(); ++i) {
        EXPECT_GE(group[i].begin_ns, until);
        until = group[i].end_ns;
      }
      EXPECT_LE(until, group[0].end_ns);
    }
    std::sort(outer.begin(), outer.end());
    for (size_t i = 1; i < outer.size(); ++i) {
      EXPECT_GE(outer[i].first, outer[i - 1].second) << track;
    }
  }
}

void ExpectNothingInFlight(Collected* form) {
  for (const char* name : {"bytes in flight", "operations in flight"}) {
    const auto& values = form->counters[name];
    ASSERT_FALSE(values.empty());
    for (const auto& [time, value] : values) EXPECT_GE(value, 0);
    EXPECT_EQ(values.back().second, 0) << name;
  }
}

// Any program: each call appears once, and all counters return to zero.
TEST_F(TraceBuilderTest, AnyProgramNests) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    form_ = Collected();
    Make();
    Program program(seed, phases_);
    for (int turn = 0; turn < 400; ++turn) {
      switch (program.Pick(4)) {
        case 0:
          for (int n = program.Pick(4); n >= 0; --n) {
            program.Submit(Call(program.Name(), 1 + program.Pick(100)));
          }
          break;
        case 1:
          program.Start();
          break;
        case 2:
          program.End();
          break;
        default:
          Build();
      }
    }
    program.Abort();
    BuildLater();
    BuildLater();
    std::set<int64_t> numbers;
    for (const auto& call : form_.On("agreement")) {
      numbers.insert(call[0].numbers.at("call"));
    }
    EXPECT_EQ(form_.On("agreement").size(), program.made());
    EXPECT_EQ(numbers.size(), program.made());
    EXPECT_EQ(form_.On("shm").size() + form_.On("mpi").size(),
              program.operations());
    ExpectNested(form_);
    ExpectNothingInFlight(&form_);
  }
}

}  // namespace
}  // namespace tf_hvd
