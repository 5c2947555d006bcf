// All interleavings of progress lock and doorbell: the background thread,
// callers with a request each, completions that submit another one, a sender
// with messages, and a thread that leaves. The jobs are small enough to visit
// every state. A model of the steps in runtime/execution/progress_engine.cc,
// with one atomic access per step; a change there must be made here too.
//
// A wait for the doorbell has no limit here, unless stated otherwise, so a lost
// wake-up shows as a state in which no thread can continue.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

namespace tf_hvd::protocol_test {
namespace {

// A step that is omitted.
enum class Flaw {
  kNone,
  kNoBackgroundLook,    // after `asleep = 1`, before it waits
  kNoCallerLook,        // after it has released the progress lock
  kCallerLeavesAwake,   // no `asleep = 1` after a caller's turn
  kNoLookAfterFiring,   // for requests submitted by a completion
  kNoRingByBusyCaller,  // when the progress lock is not tried
  kNoRingBySender,
  kNoLimitWithoutLock,  // the wait of a background without the progress lock
  kNoDriveAfterEnd,     // for requests submitted before the end was seen
  kNoLookDrivingAlone,  // after the progress lock, without a background thread
};

// The threads that take part.
struct Cast {
  const char* name;
  uint8_t callers;
  uint8_t messages;
  uint8_t resubmissions;  // made by completions
  bool leaves;
};

constexpr Cast kRequests = {"Requests", 2, 1, 0, false};
constexpr Cast kMessages = {"Messages", 1, 2, 0, false};
constexpr Cast kCompletions = {"Completions", 1, 1, 1, false};
constexpr Cast kEnding = {"Ending", 2, 0, 0, true};
constexpr Cast kEndingCompletions = {"EndingCompletions", 1, 0, 1, true};

// A thread's current step. Background, callers and leaver share some of the
// steps.
enum Step : uint8_t {
  kEnd,
  // Background.
  kTake,
  kAskedToLeave,
  kDrain,
  kPull,
  kTakeOutcomes,
  kRelease,
  kFire,
  kAsleep,
  kLookAtQueue,
  kLookAtEdges,
  kWait,
  kAsleepWithoutLock,
  kWaitWithoutLock,
  kAwake,
  kGone,
  // Submit, CallerTurn.
  kOpen,
  kPush,
  kChoose,
  kRingIfAsleep,
  kRing,
  kFinalLook,
  // DriveAlone.
  kAloneTake,
  kAloneDrain,
  kAloneOutcomes,
  kAloneRelease,
  kAloneFire,
  kAloneLook,
  // Sender, leaver.
  kSend,
  kSay,
};

constexpr int kBackground = 0;
constexpr int kFirstCaller = 1;
constexpr int kSender = 3;
constexpr int kLeaver = 4;
constexpr int kThreads = 5;

struct State {
  uint8_t taken = 0;
  uint8_t asleep = 0;
  uint8_t bell = 0;
  uint8_t open = 0;
  uint8_t queue = 0;
  uint8_t ring = 0;      // messages that have arrived
  uint8_t pending = 0;   // requests that wait for other ranks
  uint8_t outcomes = 0;  // of the cycle
  uint8_t leave_asked = 0;
  uint8_t left = 0;
  uint8_t has_background = 1;
  uint8_t resubmissions = 0;  // that completions may still make
  uint8_t to_send = 0;
  uint8_t step[kThreads] = {};
  uint8_t taken_outcomes[kThreads] = {};  // not yet fired
  uint8_t flag[kThreads] =
      {};  // background: ended; caller: no request was open
  uint8_t padding[4] = {};
};

using Words = std::array<uint64_t, 4>;
static_assert(std::has_unique_object_representations_v<State>);
static_assert(sizeof(State) == sizeof(Words));

struct WordsHash {
  size_t operator()(const Words& words) const {
    uint64_t hash = 0;
    for (const uint64_t word : words) {
      hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 32;
    }
    return static_cast<size_t>(hash);
  }
};

class Explorer {
 public:
  Explorer(const Cast& cast, Flaw flaw) : flaw_(flaw) {
    State start;
    start.step[kBackground] = kTake;
    for (int i = 0; i < cast.callers; ++i) start.step[kFirstCaller + i] = kOpen;
    start.to_send = cast.messages;
    start.resubmissions = cast.resubmissions;
    start.step[kSender] = cast.messages > 0 ? kSend : kEnd;
    start.step[kLeaver] = cast.leaves ? kSay : kEnd;
    Add(start);
  }

  // Visits every reachable state; true if in one of them no thread can continue
  // although work is left.
  bool LosesAWakeUp() {
    while (!todo_.empty()) {
      const State state = todo_.back();
      todo_.pop_back();
      const size_t before = tried_;
      for (int thread = 0; thread < kThreads; ++thread) Try(state, thread);
      if (tried_ == before && Lost(state)) return true;
    }
    return false;
  }

  size_t states() const { return seen_.size(); }

 private:
  bool Has(Flaw flaw) const { return flaw_ == flaw; }

  // For a state in which no thread can continue.
  bool Lost(const State& s) const {
    const bool ended = s.step[kBackground] == kEnd;
    return s.taken != 0 || s.queue > 0 || (s.ring > 0 && !ended) ||
           s.leave_asked != s.left;
  }

  void Add(const State& state) {
    ++tried_;
    Words words;
    std::memcpy(words.data(), &state, sizeof(state));
    if (seen_.insert(words).second) todo_.push_back(state);
  }
  void Go(State state, int thread, Step step) {
    state.step[thread] = step;
    if (step == kEnd) state.flag[thread] = 0;  // makes no difference any more
    Add(state);
  }

  void Try(const State& s, int thread) {
    const auto step = static_cast<Step>(s.step[thread]);
    if (step >= kSend) {
      Outside(s, thread, step);
    } else if (step >= kAloneTake) {
      DriveAlone(s, thread, step);
    } else if (step >= kOpen) {
      Submit(s, thread, step);
    } else if (step != kEnd) {
      thread == kBackground ? Background(s, step) : CallerTurn(s, thread, step);
    }
  }

  // Requests end immediately, or wait for a message.
  static State Drained(State s, bool at_once) {
    (at_once ? s.outcomes : s.pending) += s.queue;
    s.queue = 0;
    return s;
  }
  static State Pulled(State s) {
    for (; s.ring > 0; --s.ring) {
      if (s.pending == 0) continue;
      --s.pending;
      ++s.outcomes;
    }
    return s;
  }
  static State TookOutcomes(State s, int thread) {
    s.open = static_cast<uint8_t>(s.open - s.outcomes);
    s.taken_outcomes[thread] = s.outcomes;
    s.outcomes = 0;
    return s;
  }
  // A completion may submit a request: it only pushes it.
  void FireAndGo(State s, int thread, Step step) {
    const bool any = s.taken_outcomes[thread] > 0;
    s.taken_outcomes[thread] = 0;
    Go(s, thread, step);
    if (!any || s.resubmissions == 0) return;
    --s.resubmissions;
    ++s.open;
    ++s.queue;
    Go(s, thread, step);
  }

  void Background(State s, Step step);
  void BackgroundPull(State s);
  void BackgroundSleep(State s, Step step);
  void Submit(State s, int thread, Step step);
  void CallerTurn(State s, int thread, Step step);
  void CallerLook(State s, int thread, Step step);
  void DriveAlone(State s, int thread, Step step);
  void Outside(State s, int thread, Step step);

  const Flaw flaw_;
  std::unordered_set<Words, WordsHash> seen_;
  std::vector<State> todo_;
  size_t tried_ = 0;
};

void Explorer::Background(State s, Step step) {
  constexpr int me = kBackground;
  switch (step) {
    case kTake:
      if (s.taken != 0) return Go(s, me, kAsleepWithoutLock);
      s.taken = 1;
      return Go(s, me, kAskedToLeave);
    case kAskedToLeave:
      s.left = s.leave_asked;
      return Go(s, me, kDrain);
    case kDrain:
      Go(Drained(s, true), me, kPull);
      return Go(Drained(s, false), me, kPull);
    case kPull:
      return BackgroundPull(s);
    case kTakeOutcomes:
      return Go(TookOutcomes(s, me), me, kRelease);
    case kRelease:
      s.taken = 0;
      return Go(s, me, kFire);
    case kFire:
      if (s.flag[me] != 0) return FireAndGo(s, me, kGone);
      return FireAndGo(s, me, s.taken_outcomes[me] > 0 ? kTake : kAsleep);
    case kGone:
      s.has_background = 0;
      return Go(s, me, Has(Flaw::kNoDriveAfterEnd) ? kEnd : kAloneTake);
    default:
      return BackgroundSleep(s, step);
  }
}

void Explorer::BackgroundPull(State s) {
  constexpr int me = kBackground;
  const bool busy = s.ring > 0;
  s = Pulled(s);
  Go(s, me, busy && s.outcomes == 0 ? kDrain : kTakeOutcomes);
  if (s.left == 0) return;
  s.flag[me] = 1;  // the end has been reached: pending requests fail
  s.outcomes = static_cast<uint8_t>(s.outcomes + s.pending);
  s.pending = 0;
  Go(s, me, kTakeOutcomes);
}

void Explorer::BackgroundSleep(State s, Step step) {
  constexpr int me = kBackground;
  switch (step) {
    case kAsleep:
      s.asleep = 1;
      return Go(s, me, Has(Flaw::kNoBackgroundLook) ? kWait : kLookAtQueue);
    case kLookAtQueue:
      return Go(s, me, s.queue > 0 ? kAwake : kLookAtEdges);
    case kLookAtEdges:
      return Go(s, me, s.ring > 0 ? kAwake : kWait);
    case kAsleepWithoutLock:
      s.asleep = 1;
      return Go(s, me, kWaitWithoutLock);
    case kWaitWithoutLock:
      // Time passes only while no other thread can continue.
      if (!Has(Flaw::kNoLimitWithoutLock)) Go(s, me, kAwake);
      [[fallthrough]];
    case kWait:
      if (s.bell == 0) return;
      s.bell = 0;
      return Go(s, me, kAwake);
    case kAwake:
      s.asleep = 0;
      return Go(s, me, kTake);
    default:
      FAIL() << "not a step of the background thread";
  }
}

void Explorer::Submit(State s, int me, Step step) {
  switch (step) {
    case kOpen:
      s.flag[me] = s.open == 0 ? 1 : 0;
      ++s.open;
      return Go(s, me, kPush);
    case kPush:
      ++s.queue;
      return Go(s, me, kChoose);
    case kChoose:
      if (s.has_background == 0) return Go(s, me, kAloneTake);
      if (s.flag[me] != 0) return Go(s, me, kTake);
      return Go(s, me, Has(Flaw::kNoRingByBusyCaller) ? kEnd : kRingIfAsleep);
    case kRingIfAsleep: {
      const bool rings = std::exchange(s.asleep, uint8_t{0}) != 0;
      return Go(s, me, rings ? kRing : kEnd);
    }
    case kRing:
      s.bell = 1;
      return Go(s, me, kEnd);
    case kFinalLook:
      if (s.queue == 0 || Has(Flaw::kNoLookAfterFiring)) return Go(s, me, kEnd);
      return Go(s, me, s.has_background == 0 ? kAloneTake : kRing);
    default:
      FAIL() << "not a step of Submit";
  }
}

void Explorer::CallerTurn(State s, int me, Step step) {
  switch (step) {
    case kTake:
      if (s.taken != 0) return Go(s, me, kRingIfAsleep);
      s.taken = 1;
      return Go(s, me, kAwake);
    case kAwake:
      s.asleep = 0;
      return Go(s, me, kDrain);
    case kDrain:
      Go(Drained(s, true), me, kPull);
      return Go(Drained(s, false), me, kPull);
    case kPull:
      s = Pulled(s);
      if (s.open > s.outcomes) Go(s, me, kDrain);  // or the spin limit is over
      return Go(s, me, kTakeOutcomes);
    case kTakeOutcomes:
      return Go(TookOutcomes(s, me), me, kRelease);
    case kRelease:
      s.taken = 0;
      return Go(s, me, Has(Flaw::kCallerLeavesAwake) ? kLookAtQueue : kAsleep);
    default:
      return CallerLook(s, me, step);
  }
}

void Explorer::CallerLook(State s, int me, Step step) {
  switch (step) {
    case kAsleep:
      s.asleep = 1;
      return Go(s, me, Has(Flaw::kNoCallerLook) ? kFire : kLookAtQueue);
    case kLookAtQueue:
      return Go(s, me, s.open > 0 || s.queue > 0 ? kGone : kLookAtEdges);
    case kLookAtEdges:
      return Go(s, me, s.ring > 0 ? kGone : kFire);
    case kGone:  // work is left for the background thread
      s.bell = 1;
      return Go(s, me, kFire);
    case kFire:
      return FireAndGo(s, me, kFinalLook);
    default:
      FAIL() << "not a step of a caller's turn";
  }
}

void Explorer::DriveAlone(State s, int me, Step step) {
  switch (step) {
    case kAloneTake:
      if (s.taken != 0) return Go(s, me, kEnd);
      s.taken = 1;
      return Go(s, me, kAloneDrain);
    case kAloneDrain:
      return Go(Drained(s, true), me, kAloneOutcomes);
    case kAloneOutcomes:
      return Go(TookOutcomes(s, me), me, kAloneRelease);
    case kAloneRelease:
      s.taken = 0;
      return Go(s, me, kAloneFire);
    case kAloneFire:
      return FireAndGo(s, me,
                       Has(Flaw::kNoLookDrivingAlone) ? kEnd : kAloneLook);
    case kAloneLook:
      return Go(s, me, s.queue > 0 ? kAloneTake : kEnd);
    default:
      FAIL() << "not a step of DriveAlone";
  }
}

void Explorer::Outside(State s, int me, Step step) {
  if (step == kSay) {
    s.leave_asked = 1;
    return Go(s, me, kRing);
  }
  uint8_t& done = s.flag[kSender];
  switch (done++) {
    case 0:
      ++s.ring;
      return Go(s, me, kSend);
    case 1:
      if (std::exchange(s.asleep, uint8_t{0}) == 0) break;
      return Go(s, me, kSend);
    default:
      if (!Has(Flaw::kNoRingBySender)) s.bell = 1;
  }
  done = 0;
  --s.to_send;
  Go(s, me, s.to_send > 0 ? kSend : kEnd);
}

class CastTest : public testing::TestWithParam<Cast> {};

TEST_P(CastTest, NoWakeUpIsLost) {
  Explorer explorer(GetParam(), Flaw::kNone);
  EXPECT_FALSE(explorer.LosesAWakeUp());
  std::printf("%zu states\n", explorer.states());
}

INSTANTIATE_TEST_SUITE_P(ProgressModel, CastTest,
                         testing::Values(kRequests, kMessages, kCompletions,
                                         kEnding, kEndingCompletions),
                         [](const auto& one) {
                           return std::string(one.param.name);
                         });

// The limit of that wait is needed only for Leave.
TEST(ProgressModelTest, RequestsAndMessagesNeedNoLimit) {
  for (const Cast& cast : {kRequests, kMessages, kCompletions}) {
    Explorer explorer(cast, Flaw::kNoLimitWithoutLock);
    EXPECT_FALSE(explorer.LosesAWakeUp()) << cast.name;
  }
}

struct LeftOut {
  const char* name;
  Flaw flaw;
  Cast cast;  // detects the omission
};

class OmittedStepTest : public testing::TestWithParam<LeftOut> {};

TEST_P(OmittedStepTest, LosesAWakeUp) {
  EXPECT_TRUE(Explorer(GetParam().cast, GetParam().flaw).LosesAWakeUp());
}

INSTANTIATE_TEST_SUITE_P(
    ProgressModel, OmittedStepTest,
    testing::Values(
        LeftOut{"BackgroundLook", Flaw::kNoBackgroundLook, kRequests},
        LeftOut{"CallerLook", Flaw::kNoCallerLook, kRequests},
        LeftOut{"CallerSetsAsleep", Flaw::kCallerLeavesAwake, kMessages},
        LeftOut{"LookAfterFiring", Flaw::kNoLookAfterFiring, kCompletions},
        LeftOut{"RingByBusyCaller", Flaw::kNoRingByBusyCaller, kRequests},
        LeftOut{"RingBySender", Flaw::kNoRingBySender, kMessages},
        LeftOut{"LimitWithoutLock", Flaw::kNoLimitWithoutLock, kEnding},
        LeftOut{"DriveAfterEnd", Flaw::kNoDriveAfterEnd, kEnding},
        LeftOut{"LookDrivingAlone", Flaw::kNoLookDrivingAlone,
                kEndingCompletions}),
    [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace tf_hvd::protocol_test
