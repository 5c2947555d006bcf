#include "tests/runtime/protocol/program.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "runtime/request/request.h"
#include "tests/runtime/protocol/event_queue.h"

namespace tf_hvd::protocol_test {
namespace {

Request RecordOf(OpKind kind, int64_t rows) {
  Request request;
  request.kind = kind;
  if (kind == OpKind::kBroadcast) request.root = 0;
  if (kind == OpKind::kAllgather) rows = -1;
  if (kind <= OpKind::kBroadcast) {
    request.tensors.push_back({DType::kFloat32, {rows, 2}});
  }
  return request;
}

class Author {
 public:
  Author(int size, Random* random, History* history)
      : size_(size), random_(random), history_(history) {}

  Program Write();

 private:
  struct Placed {
    int iteration = 0;
    int number = 0;  // in the whole program
    Call call;
  };

  bool Faulty(int rank, const Placed& placed) const {
    return placed.number == fault_ &&
           std::count(faulty_ranks_.begin(), faulty_ranks_.end(), rank) > 0;
  }
  bool Joins() const {
    return history_->scenario == Scenario::kJoin ||
           history_->scenario == Scenario::kJoinSets;
  }
  std::vector<int> SomeRanks(const std::vector<int>& of, int64_t count);
  void ChooseSets();
  void WriteCalls();
  void ChooseFault();
  std::vector<Phase> PhasesOf(int rank);
  Phase AddPhase();
  Phase WorkPhase(int rank, int iteration, bool blocking);
  void AppendCall(int rank, const Placed& placed, std::vector<Call>* calls);
  Phase JoinPhase(int rank);
  void ChooseDynamic();
  void AppendDynamic(int rank, int number, int set, Phase* add, Phase* use,
                     Phase* remove);
  void AppendDynamicRounds(int rank, std::vector<Phase>* phases);
  std::vector<Event> Events();
  std::vector<int64_t> StartTimes();

  const int size_;
  Random* const random_;
  History* const history_;
  std::vector<std::vector<int>> sets_;  // members; 0 is the world
  std::vector<Placed> calls_;
  int iterations_ = 1;
  int style_ = 0;  // 0 asynchronous, 1 blocking, 2 either
  bool rejoins_ = false;
  std::vector<std::vector<int>> dynamic_;  // numbers of sets, by round
  // The faulty call, and the ranks on which it is faulty.
  int fault_ = -1;
  std::vector<int> faulty_ranks_;
};

std::vector<int> Author::SomeRanks(const std::vector<int>& of, int64_t count) {
  std::vector<int> ranks = of;
  random_->Shuffle(&ranks);
  ranks.resize(static_cast<size_t>(count));
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

void Author::ChooseSets() {
  std::vector<int> world(static_cast<size_t>(size_));
  std::iota(world.begin(), world.end(), 0);
  sets_.push_back(world);
  const Scenario s = history_->scenario;
  const bool always = s == Scenario::kSets || s == Scenario::kJoinSets ||
                      s == Scenario::kLeave || s == Scenario::kMissing ||
                      s == Scenario::kDeath || s == Scenario::kStopped;
  if (!always && !random_->Percent(30)) return;
  for (int64_t more = random_->Between(1, 3); more > 0; --more) {
    sets_.push_back(SomeRanks(world, random_->Between(1, size_)));
  }
}

void Author::WriteCalls() {
  iterations_ = random_->Pick({1, 2, 3, 6});
  const int names = random_->Pick({1, 3, 8});
  for (int it = 0; it < iterations_; ++it) {
    for (int set = 0; set < static_cast<int>(sets_.size()); ++set) {
      for (int k = 0; k < names; ++k) {
        Call call;
        call.set = set;
        call.name = "g" + std::to_string(k);
        call.request = RecordOf(OpKind::kAllreduce, k + 1);
        // As an optimizer does; other calls have no steps.
        if (set % 2 == 0) call.step = it;
        calls_.push_back({it, static_cast<int>(calls_.size()), call});
      }
    }
    for (int k = random_->Pick({0, 2}); k > 0; --k) {
      Call call;
      call.set =
          static_cast<int>(random_->Below(static_cast<int64_t>(sets_.size())));
      call.name = "new" + std::to_string(it) + "_" + std::to_string(k);
      call.request =
          RecordOf(random_->Pick({OpKind::kAllreduce, OpKind::kBroadcast,
                                  OpKind::kAllgather, OpKind::kBarrier}),
                   it + 1);
      calls_.push_back({it, static_cast<int>(calls_.size()), call});
    }
  }
}

void Author::ChooseFault() {
  const Scenario s = history_->scenario;
  fault_ =
      static_cast<int>(random_->Below(static_cast<int64_t>(calls_.size())));
  const std::vector<int>& members =
      sets_[static_cast<size_t>(calls_[static_cast<size_t>(fault_)].call.set)];
  const auto count = static_cast<int64_t>(members.size());
  switch (s) {
    case Scenario::kMismatch:
    case Scenario::kDuplicateOne:
      faulty_ranks_ = SomeRanks(members, 1);
      return;
    case Scenario::kJoin:
    case Scenario::kJoinSets:
      if (random_->Percent(75)) return;
      [[fallthrough]];
    case Scenario::kRefusal:
      faulty_ranks_ =
          SomeRanks(members, random_->Between(1, std::min<int64_t>(count, 2)));
      return;
    case Scenario::kMissing:
      faulty_ranks_ = SomeRanks(
          members, random_->Between(1, std::max<int64_t>(1, count - 1)));
      return;
    case Scenario::kDuplicateAll:
      faulty_ranks_ = members;
      return;
    default:
      return;
  }
}

void Author::AppendCall(int rank, const Placed& placed,
                        std::vector<Call>* calls) {
  Call call = placed.call;
  const bool faulty = Faulty(rank, placed);
  const Scenario s = history_->scenario;
  if (faulty && s == Scenario::kMissing) return;
  if (faulty && s == Scenario::kMismatch) {
    if (call.request.tensors.empty()) {
      call.request = RecordOf(OpKind::kAllreduce, 1);
    } else {
      call.request.tensors[0].dtype = DType::kFloat64;
    }
  }
  if (faulty && (s == Scenario::kRefusal || Joins())) {
    call.local_error = "'" + call.name + "' cannot be a scalar";
  }
  calls->push_back(call);
  if (faulty &&
      (s == Scenario::kDuplicateOne || s == Scenario::kDuplicateAll)) {
    calls->push_back(call);
  }
}

Phase Author::AddPhase() {
  Phase phase;
  Lane lane;
  lane.blocking = style_ == 1;
  for (size_t i = 1; i < sets_.size(); ++i) {
    Call call;
    call.name = "add" + std::to_string(i);
    call.request.kind = OpKind::kAddSet;
    call.request.ranks.assign(sets_[i].begin(), sets_[i].end());
    call.adds = static_cast<int>(i);
    lane.calls.push_back(call);
  }
  if (!lane.blocking) random_->Shuffle(&lane.calls);
  phase.lanes.push_back(lane);
  return phase;
}

Phase Author::WorkPhase(int rank, int iteration, bool blocking) {
  std::map<int, Lane> lanes;
  for (const Placed& placed : calls_) {
    const auto& members = sets_[static_cast<size_t>(placed.call.set)];
    if (placed.iteration != iteration ||
        !std::binary_search(members.begin(), members.end(), rank)) {
      continue;
    }
    AppendCall(rank, placed, &lanes[placed.call.set].calls);
  }
  Phase phase;
  for (auto& [set, lane] : lanes) {
    lane.blocking = blocking;
    const bool doubled = history_->scenario == Scenario::kDuplicateOne ||
                         history_->scenario == Scenario::kDuplicateAll;
    if (!blocking && !doubled) random_->Shuffle(&lane.calls);
    phase.lanes.push_back(std::move(lane));
  }
  return phase;
}

Phase Author::JoinPhase(int rank) {
  Phase phase;
  Lane lane;
  for (int set = 0; set < static_cast<int>(sets_.size()); ++set) {
    const auto& members = sets_[static_cast<size_t>(set)];
    if (!std::binary_search(members.begin(), members.end(), rank)) continue;
    Call join;
    join.set = set;
    join.name = kJoinName;
    join.request.kind = OpKind::kJoin;
    lane.calls.push_back(join);
    if (!random_->Percent(10)) continue;
    Call late;
    late.set = set;
    late.name = "late";
    late.request = RecordOf(OpKind::kAllreduce, 1);
    late.late = true;
    late.at_once = true;
    lane.calls.push_back(late);
  }
  phase.lanes.push_back(lane);
  return phase;
}

// Sets are added, some of them concurrently and under reused names, used
// immediately, and removed by some ranks while others still use them.
void Author::ChooseDynamic() {
  if (history_->scenario != Scenario::kDynamicSets) return;
  for (int64_t round = random_->Between(1, 6); round > 0; --round) {
    std::vector<int> numbers = {1, 2, 3, 4};
    random_->Shuffle(&numbers);
    numbers.resize(static_cast<size_t>(random_->Between(1, 3)));
    dynamic_.push_back(numbers);
  }
}

// A set is added under a name that stands for its members, used immediately,
// and removed by some ranks while others still use it.
void Author::AppendDynamic(int rank, int number, int set, Phase* add,
                           Phase* use, Phase* remove) {
  Call call;
  call.name = "dynamic" + std::to_string(number);
  call.request.kind = OpKind::kAddSet;
  for (int r = number % size_; r < size_; r += 1 + number % 2) {
    call.request.ranks.push_back(r);
  }
  call.adds = set;
  const auto& ranks = call.request.ranks;
  if (std::binary_search(ranks.begin(), ranks.end(), rank)) {
    use->lanes.emplace_back();
    for (int i = 0; i < 3; ++i) {
      Call one;
      one.set = set;
      one.name = "d" + std::to_string(i);
      one.request = RecordOf(OpKind::kAllreduce, i + 1);
      use->lanes.back().calls.push_back(one);
    }
  }
  add->lanes[0].calls.push_back(call);
  Call end;
  end.name = "remove" + std::to_string(set);
  end.request.kind = OpKind::kRemoveSet;
  end.removes = set;
  remove->lanes[0].calls.push_back(end);
}

void Author::AppendDynamicRounds(int rank, std::vector<Phase>* phases) {
  auto set = static_cast<int>(sets_.size());
  for (const std::vector<int>& numbers : dynamic_) {
    Phase add;
    Phase use;
    Phase remove;
    add.lanes.emplace_back();
    remove.lanes.emplace_back();
    use.hurries = true;
    for (const int number : numbers) {
      AppendDynamic(rank, number, set++, &add, &use, &remove);
    }
    random_->Shuffle(&add.lanes[0].calls);
    random_->Shuffle(&remove.lanes[0].calls);
    phases->push_back(add);
    if (random_->Percent(50)) {
      // Some calls are made after the removal.
      use.hurries = false;
      use.lanes.push_back(remove.lanes[0]);
      phases->push_back(use);
    } else {
      phases->push_back(use);
      phases->push_back(remove);
    }
  }
}

std::vector<Phase> Author::PhasesOf(int rank) {
  std::vector<Phase> phases;
  if (sets_.size() > 1) phases.push_back(AddPhase());
  const bool blocking = style_ == 1 || (style_ == 2 && random_->Percent(50));
  int64_t stop = iterations_;
  if (Joins()) stop = random_->Between(0, iterations_);
  for (int it = 0; it < stop; ++it) {
    phases.push_back(WorkPhase(rank, it, blocking));
  }
  if (Joins()) {
    if (history_->deferred_join && stop > 0) phases.back().hurries = true;
    phases.push_back(JoinPhase(rank));
    if (rejoins_) {
      phases.push_back(WorkPhase(rank, 0, blocking));
      phases.push_back(JoinPhase(rank));
    }
  }
  AppendDynamicRounds(rank, &phases);
  return phases;
}

std::vector<Event> Author::Events() {
  std::vector<Event> events;
  const auto add = [&](Event::Kind kind, int64_t scale_ns) {
    const auto rank = static_cast<int>(random_->Below(size_));
    events.push_back({kind, rank, random_->Below(scale_ns)});
  };
  switch (history_->scenario) {
    case Scenario::kDeath:
      for (int n = random_->Pick({1, 1, 2}); n > 0; --n) {
        add(Event::kKill,
            random_->Pick<int64_t>({100 * kUs, 10 * kMs, kSecond}));
      }
      break;
    case Scenario::kStopped:
      add(Event::kStop,
          random_->Pick<int64_t>({10 * kUs, 10 * kMs, kSecond / 2}));
      break;
    case Scenario::kLeave:
      for (int n = random_->Pick({1, 1, 2}); n > 0; --n) {
        add(Event::kLeave,
            random_->Pick<int64_t>({100 * kUs, 10 * kMs, kSecond}));
      }
      break;
    default:
      break;
  }
  return events;
}

std::vector<int64_t> Author::StartTimes() {
  const bool late = history_->scenario == Scenario::kLateRank;
  std::vector<int64_t> times;
  for (int rank = 0; rank < size_; ++rank) {
    const auto spread_ns =
        late ? kMs
             : random_->Pick<int64_t>({1, kUs, kMs, 300 * kMs, 3 * kSecond});
    times.push_back(random_->Below(spread_ns));
  }
  if (late) {
    // Around the first warning, and around the first check beyond the limit.
    times[static_cast<size_t>(random_->Below(size_))] +=
        random_->Pick<int64_t>({30, 300, 420}) * kSecond +
        random_->Between(-kSecond / 10, 11 * kSecond / 10);
  }
  return times;
}

Program Author::Write() {
  history_->scenario = random_->Pick(
      {Scenario::kPlain, Scenario::kSets, Scenario::kSets, Scenario::kMismatch,
       Scenario::kDuplicateOne, Scenario::kDuplicateAll, Scenario::kRefusal,
       Scenario::kJoin, Scenario::kJoinSets, Scenario::kDynamicSets,
       Scenario::kDynamicSets, Scenario::kLeave, Scenario::kMissing,
       Scenario::kDeath, Scenario::kDeath, Scenario::kStopped,
       Scenario::kLateRank});
  ChooseSets();
  WriteCalls();
  ChooseFault();
  style_ = static_cast<int>(random_->Below(3));
  if (Joins()) {
    history_->deferred_join = random_->Percent(50);
    if (history_->deferred_join) style_ = 0;
    rejoins_ = random_->Percent(50);
  }
  ChooseDynamic();
  Program program;
  for (int rank = 0; rank < size_; ++rank) {
    program.ranks.push_back(PhasesOf(rank));
  }
  program.start_ns = StartTimes();
  program.events = Events();
  program.slow_edges = history_->scenario == Scenario::kLateRank;
  return program;
}

}  // namespace

Program MakeProgram(int size, Random* random, History* history) {
  return Author(size, random, history).Write();
}

}  // namespace tf_hvd::protocol_test
