// This rank's requests: which of them to vote for, and their callers' results.
#include "runtime/agreement/local_requests.h"

#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tf_hvd {
namespace {

const Key kG = {kWorldSet, "g"};
const Key kH = {kWorldSet, "h"};
const Key kJoin = {kWorldSet, kJoinName};

// A queue, and the result for each caller, by the number of its call.
class LocalRequestsTest : public testing::Test {
 protected:
  // Returns the number of the call.
  int Submit(const Key& key, int64_t submitted_ns = 0,
             const Status& local_error = {}) {
    return Submit(OpKind::kAllreduce, key, submitted_ns, local_error);
  }

  int Join(int32_t set = kWorldSet, int64_t submitted_ns = 0) {
    return Submit(OpKind::kJoin, {set, "join"}, submitted_ns, {});
  }

  // The caller leaves.
  void GiveUp(int call) { callers_.at(static_cast<size_t>(call))->GiveUp(); }

  // True if the executor gets an entry; it keeps it.
  bool Order(const Key& key) {
    std::optional<Entry> own = queue_.Ordered(key);
    if (!own.has_value()) return false;
    executed_.push_back(std::move(*own));
    return true;
  }

  std::map<int, std::vector<std::string>> told_;
  std::map<int, StatusCode> codes_;  // of each call's last result
  int tells_ = 0;
  LocalRequests queue_{[this](Completion done, const Status& status) {
    ++tells_;
    done.Fire(status, 0);
  }};

 private:
  int Submit(OpKind kind, const Key& key, int64_t submitted_ns,
             const Status& local_error) {
    const auto call = static_cast<int>(callers_.size());
    callers_.push_back(std::make_shared<CallerState>());
    Entry entry;
    entry.set = key.first;
    entry.name = key.second;
    entry.request.kind = kind;
    entry.submitted_ns = submitted_ns;
    entry.local_error = local_error;
    entry.caller = callers_.back();
    entry.done = Completion([this, call](const Status& status, int32_t) {
      told_[call].push_back(status.message());
      codes_[call] = status.code();
    });
    queue_.Add(std::move(entry));
    return call;
  }

  std::vector<std::shared_ptr<CallerState>> callers_;
  std::vector<Entry> executed_;
};

using Keys = std::vector<Key>;

TEST_F(LocalRequestsTest, IsADuplicateWhileTheEarlierCallIsWaitedFor) {
  const struct {
    const char* what;
    bool refused, gone, ordered, gone_later, finished;
    bool duplicate;
  } kCases[] = {
      {"waits", false, false, false, false, false, true},
      {"refused", true, false, false, false, false, false},
      {"given up", false, true, false, false, false, false},
      {"executed", false, false, true, false, false, true},
      {"given up, executed", false, true, true, false, false, false},
      {"executed, given up", false, false, true, true, false, false},
      {"finished", false, false, true, false, true, false},
  };
  for (size_t i = 0; i < std::size(kCases); ++i) {
    const auto& one = kCases[i];
    const Key key = {kWorldSet, "g" + std::to_string(i)};
    const int first =
        Submit(key, 0, one.refused ? InvalidArgument("wrong") : Status::Ok());
    if (one.gone) GiveUp(first);
    if (one.ordered) Order(key);
    if (one.gone_later) GiveUp(first);
    if (one.finished) queue_.Finished(key);
    const int second = Submit(key);
    EXPECT_EQ(told_.count(second), one.duplicate ? 1u : 0u) << one.what;
    if (one.duplicate) {
      EXPECT_EQ(codes_[second], StatusCode::kInvalidArgument);
    }
  }
}

// Missing memory or a missing driver used to be reported to the caller as its
// own mistake.
TEST_F(LocalRequestsTest, RefusedCallGetsItsErrorCode) {
  for (const Status& error :
       {InvalidArgument("a scalar"), FailedPrecondition("no CUDA driver"),
        Aborted("no memory"), Internal("bug in tf_hvd")}) {
    const int call = Submit(kG, 0, error);
    EXPECT_EQ(told_[call], std::vector<std::string>{error.message()});
    EXPECT_EQ(codes_[call], error.code());
  }
}

// A call that is invalid here gets its error immediately, and is still voted
// for: otherwise it would match the other ranks' next call.
TEST_F(LocalRequestsTest, RefusedCallIsStillVotedFor) {
  const int call = Submit(kG, 0, InvalidArgument("wrong"));
  EXPECT_EQ(told_[call], std::vector<std::string>{"wrong"});
  EXPECT_EQ(queue_.TakeTurns(), Keys{kG});
  EXPECT_EQ(queue_.Front(kG).local_error.message(), "wrong");
  EXPECT_TRUE(queue_.Waiting());
  EXPECT_FALSE(Order(kG));
  EXPECT_TRUE(queue_.executing().empty());
  EXPECT_FALSE(queue_.Waiting());
  EXPECT_EQ(told_[call].size(), 1u);
}

TEST_F(LocalRequestsTest, JoinWaitsForAllVotesOfItsSet) {
  GiveUp(Submit(kG));
  Submit(kG);
  Submit({1, "x"});
  EXPECT_EQ(queue_.TakeTurns(), (Keys{kG, {1, "x"}}));
  Join();
  EXPECT_TRUE(queue_.HasJoined(kWorldSet));
  EXPECT_FALSE(queue_.HasJoined(1));
  EXPECT_EQ(queue_.TakeTurns(), Keys());
  // Another set's join is not held back.
  Join(1);
  EXPECT_EQ(queue_.TakeTurns(), (Keys{{1, kJoinName}}));
  Order(kG);
  EXPECT_EQ(queue_.TakeTurns(), (Keys{kG, kJoin}));
  EXPECT_EQ(queue_.Front(kJoin).name, kJoinName);
  EXPECT_TRUE(queue_.HasJoined(kWorldSet));
  Order(kG);
  EXPECT_TRUE(Order(kJoin));
  EXPECT_FALSE(queue_.HasJoined(kWorldSet));
}

// A joined rank takes part in the other ranks' requests, without an entry.
TEST_F(LocalRequestsTest, RequestNotSubmittedHereHasNoEntry) {
  EXPECT_FALSE(Order(kG));
  EXPECT_TRUE(queue_.executing().empty());
}

TEST_F(LocalRequestsTest, TheOldestExecutingIsFinishedFirst) {
  GiveUp(Submit(kG));
  Order(kG);
  queue_.NoteProgress(0, 10);
  Submit(kG);
  Order(kG);
  queue_.NoteProgress(0, 20);
  ASSERT_EQ(queue_.executing().count(kG), 2u);
  queue_.Finished(kG);
  ASSERT_EQ(queue_.executing().count(kG), 1u);
  EXPECT_EQ(queue_.executing().find(kG)->second.since_ns, 20);
  queue_.Finished(kG);
  EXPECT_TRUE(queue_.executing().empty());
}

TEST_F(LocalRequestsTest, FailsEachCallOnce) {
  const int g = Submit(kG);
  const int refused = Submit(kH, 0, InvalidArgument("wrong"));
  const int again = Submit(kH);
  const int join = Join();
  Submit({1, "x"});
  Order({1, "x"});
  queue_.FailAll(
      [](const Key& key) { return Aborted("end of " + key.second); });
  EXPECT_EQ(told_[g], std::vector<std::string>{"end of g"});
  EXPECT_EQ(told_[refused], std::vector<std::string>{"wrong"});
  EXPECT_EQ(told_[again], std::vector<std::string>{"end of h"});
  EXPECT_EQ(told_[join], std::vector<std::string>{"end of \x01join"});
  EXPECT_EQ(tells_, 4);
  // The executor still has to finish it.
  EXPECT_EQ(queue_.executing().size(), 1u);
  EXPECT_FALSE(queue_.Waiting());
  EXPECT_EQ(queue_.TakeTurns(), Keys());
}

TEST_F(LocalRequestsTest, FailsOneSet) {
  const int g = Submit(kG);
  const int x = Submit({1, "x"});
  GiveUp(Submit({1, "y"}));
  Submit({1, "y"});
  const int join = Join(1);
  queue_.FailSet(1, Aborted("removed"));
  EXPECT_EQ(told_.count(g), 0u);
  EXPECT_EQ(told_[x], std::vector<std::string>{"removed"});
  EXPECT_EQ(told_[join], std::vector<std::string>{"removed"});
  EXPECT_EQ(queue_.TakeTurns(), Keys{kG});
  EXPECT_FALSE(queue_.HasJoined(1));
}

using Since = std::map<Key, int64_t>;

// Since the oldest call with a waiting caller.
TEST_F(LocalRequestsTest, ReportsSinceWhenCallersWait) {
  GiveUp(Submit(kG, 1));
  Submit(kG, 2);
  Submit(kH, 3, InvalidArgument("wrong"));
  Join(kWorldSet, 4);
  EXPECT_EQ(queue_.Waits(), (Since{{kG, 2}, {kJoin, 4}}));
  Order(kG);
  queue_.TakeTurns();
  EXPECT_EQ(queue_.Waits(), (Since{{kG, 2}, {kJoin, 4}}));
}

TEST_F(LocalRequestsTest, JoinedRankCountsAsHavingSubmittedEverything) {
  GiveUp(Submit(kG));
  Submit(kG);
  EXPECT_TRUE(queue_.HasSubmitted(kG));
  EXPECT_FALSE(queue_.HasSubmitted(kH));
  Join();
  queue_.TakeTurns();
  // The join is held back: no rank counts it yet.
  EXPECT_TRUE(queue_.HasSubmitted(kJoin));
  EXPECT_FALSE(queue_.HasSubmitted(kH));
  Order(kG);
  queue_.TakeTurns();
  EXPECT_TRUE(queue_.HasSubmitted(kH));
  EXPECT_FALSE(queue_.HasSubmitted({1, "h"}));
}

// While other ranks make progress, a joined rank does not wait too long.
TEST_F(LocalRequestsTest, JoinsWaitRestartsWithOtherRanksProgress) {
  Join(kWorldSet, 1);
  Join(1, 1);
  queue_.TakeTurns();
  Order(kG);
  queue_.NoteProgress(0, 10);
  EXPECT_EQ(queue_.Waits(), (Since{{kJoin, 10}, {{1, kJoinName}, 1}}));
  queue_.NoteProgress(0, 20);
  EXPECT_EQ(queue_.Waits(), (Since{{kJoin, 10}, {{1, kJoinName}, 1}}));
}

TEST_F(LocalRequestsTest, ExecutingRequestWaitsFromTheLastProgress) {
  const auto since = [this] {
    return queue_.executing().find(kG)->second.since_ns;
  };
  Submit(kG);
  Submit(kH);
  Order(kG);
  Order(kH);
  queue_.NoteProgress(0, 10);
  EXPECT_EQ(since(), 10);
  EXPECT_EQ(queue_.moved_ns(), 0);
  queue_.NoteProgress(0, 20);
  EXPECT_EQ(since(), 10);
  queue_.NoteProgress(1, 30);
  EXPECT_EQ(since(), 30);
  EXPECT_EQ(queue_.moved_ns(), 30);
  queue_.Finished(kH);
  queue_.NoteProgress(1, 40);
  EXPECT_EQ(since(), 40);
  EXPECT_EQ(queue_.moved_ns(), 40);
  queue_.NoteProgress(1, 50);
  EXPECT_EQ(since(), 40);
}

}  // namespace
}  // namespace tf_hvd
