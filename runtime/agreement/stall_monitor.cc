#include "runtime/agreement/stall_monitor.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "runtime/agreement/stall_text.h"

namespace tf_hvd {
namespace {

// Levels of the tree below `rank`, of which some may not be there.
int HeightBelow(int rank, const Topology& topology) {
  int height = 1;  // the other ranks of its node
  const auto arity = static_cast<size_t>(topology.fan_out);
  auto node = static_cast<size_t>(topology.NodeOf(rank));
  while ((node = node * arity + 1) < topology.nodes.size()) ++height;
  return height;
}

// An age as it travels.
uint32_t InMs(int64_t age_ns) {
  return static_cast<uint32_t>(
      std::clamp<int64_t>(age_ns / kMs, 0, 0xffffffff));
}

}  // namespace

StallMonitor::StallMonitor(const ProcessSets& sets, const Ordering& ordering,
                           const LocalRequests& own, const Topology& topology,
                           const StallOptions& options,
                           const ResponseRunner& runner, ControllerHost* host)
    : sets_(sets),
      ordering_(ordering),
      own_(own),
      topology_(topology),
      options_(options),
      runner_(runner),
      host_(host),
      height_(HeightBelow(topology.rank, topology)) {}

void StallMonitor::Tick(int64_t now_ns) {
  if (options_.warn_ns > 0) {
    const std::map<Key, int64_t> waits = own_.Waits();
    if (ExecutesTooLong(now_ns) || WaitsTooLong(waits, now_ns)) return;
    AskForWaits(waits, now_ns);
  }
  for (auto it = quiet_since_.begin(); it != quiet_since_.end();) {
    const bool over = now_ns - it->second >= options_.query_ns;
    it = over ? quiet_since_.erase(it) : std::next(it);
  }
  std::vector<Key> due;
  for (const auto& [key, query] : queries_) {
    if (now_ns >= query.due_ns) due.push_back(key);
  }
  for (const Key& key : due) EndQuery(key, now_ns);
}

int64_t StallMonitor::due_ns() const {
  int64_t due_ns = std::numeric_limits<int64_t>::max();
  for (const auto& [key, query] : queries_) {
    const ProcessSet* const set = sets_.Find(key.first);
    if (set == nullptr || set->coordinated) continue;
    due_ns = std::min(due_ns, query.due_ns);
  }
  return due_ns;
}

// The rank that waits ends it itself: whoever should have may be stopped.
bool StallMonitor::WaitsTooLong(const std::map<Key, int64_t>& waits,
                                int64_t now_ns) {
  const int64_t last_limit = options_.fail_ns + options_.grace_ns;
  if (options_.fail_ns <= 0) return false;
  // Those above answer. If they have not moved the call before this one, of the
  // same name, they know whose data is missing, and are to say so first
  // (ExecutesTooLong).
  const int64_t answered_limit = last_limit + 2 * options_.grace_ns;
  const auto text = [](int64_t limit_ns) {
    return " got no decision within " + SecondsText(limit_ns);
  };
  for (const auto& [key, since_ns] : waits) {
    if (now_ns - since_ns <= last_limit) continue;
    const std::vector<int> above = Above(key);
    if (!above.empty() && Unanswered(asked_[key], now_ns)) {
      // Who is nearer to the top knows better who it is, and blames a lower
      // rank: of several texts that one wins.
      AbortWait(key, above.front(),
                text(last_limit) + NoAnswerText(above, topology_.hosts));
      return true;
    }
    // Those above are well. It may wait for what is before it.
    if (now_ns - since_ns <= answered_limit) continue;
    if (now_ns - own_.moved_ns() <= last_limit) continue;
    AbortWait(key, sets_.rank(), text(answered_limit));
    return true;
  }
  return false;
}

bool StallMonitor::ExecutesTooLong(int64_t now_ns) {
  if (options_.fail_ns <= 0) return false;
  const int awaited = runner_.awaited();
  // A rank of this node may wait for another node itself. It knows whom for,
  // so it may speak first.
  const bool here = awaited >= 0 && topology_.nodes.size() > 1 &&
                    topology_.NodeOf(awaited) == topology_.NodeOf(sets_.rank());
  const int64_t last_limit =
      options_.fail_ns + (here ? 2 : 1) * options_.grace_ns;
  for (const auto& [key, one] : own_.executing()) {
    if (now_ns - one.since_ns <= last_limit) continue;
    std::string what = " was agreed by all ranks and has not moved for " +
                       SecondsText(last_limit);
    if (awaited >= 0) {
      what += ": no data from " + RankText(awaited, topology_.hosts) +
              " (stopped, or its machine cannot be reached, or it waits for "
              "another rank itself)";
    }
    AbortWait(key, sets_.rank(), what);
    return true;
  }
  return false;
}

void StallMonitor::AbortWait(const Key& key, int rank,
                             const std::string& what) {
  host_->Abort(AbortRecord::kStalled, rank,
               Shown(key) + what + "; seen by " +
                   RankText(sets_.rank(), topology_.hosts));
}

void StallMonitor::AskForWaits(const std::map<Key, int64_t>& waits,
                               int64_t now_ns) {
  for (auto it = asked_.begin(); it != asked_.end();) {
    it = waits.count(it->first) > 0 ? std::next(it) : asked_.erase(it);
  }
  for (const auto& [key, since_ns] : waits) {
    const int64_t age_ns = now_ns - since_ns;
    if (age_ns < options_.warn_ns) {
      AskEarly(key, age_ns, now_ns);
      continue;
    }
    Asked& asked = asked_[key];
    // Past the limit the next report ends the job, and has only the grace to do
    // so before waiters end it, who know less.
    const bool last = options_.fail_ns > 0 && age_ns >= options_.fail_ns;
    const int64_t beat_ns = last ? options_.query_ns : options_.warn_ns;
    if (asked.asked_ns == 0 || now_ns - asked.asked_ns >= beat_ns) {
      // Who asks more often than answers are waited for waits all the same.
      if (asked.asked_ns == 0 || Heard(asked)) asked.since_ns = now_ns;
      asked.asked_ns = now_ns;
      if (!last) asked.warned = false;
      Ask(key, now_ns);
    } else if (!asked.warned && Unanswered(asked, now_ns)) {
      asked.warned = true;
      const std::vector<int> above = Above(key);
      if (above.empty()) continue;
      host_->Warn("stall: " + Shown(key) + " waited " + SecondsText(age_ns) +
                  NoAnswerText(above, topology_.hosts));
    }
  }
}

void StallMonitor::AskEarly(const Key& key, int64_t age_ns, int64_t now_ns) {
  if (age_ns < options_.compiled_ns || !own_.IsCompiled(key)) return;
  Asked& asked = asked_[key];
  if (!std::exchange(asked.early, true)) Ask(key, now_ns);
}

void StallMonitor::Ask(const Key& key, int64_t now_ns) {
  Message ask;
  ask.kind = MessageKind::kAsk;
  ask.set = key.first;
  ask.name = key.second;
  OnAsk(ask, now_ns);
}

// A query that came shortly before answers the question as well.
bool StallMonitor::Heard(const Asked& asked) const {
  return asked.heard_ns > 0 &&
         asked.heard_ns >= asked.since_ns - 2 * options_.query_ns;
}

bool StallMonitor::Unanswered(const Asked& asked, int64_t now_ns) const {
  return asked.asked_ns > 0 &&
         now_ns - asked.since_ns >= 2 * options_.query_ns && !Heard(asked);
}

std::vector<int> StallMonitor::Above(const Key& key) const {
  const ProcessSet* const set = sets_.Find(key.first);
  if (set == nullptr) return {};
  return PathToCoordinator(sets_.rank(), *set->members, topology_.nodes,
                           topology_.fan_out);
}

// A question that was passed on shortly before, or its query, stands for all of
// them: the coordinator would take no notice of this one.
void StallMonitor::OnAsk(const Message& ask, int64_t now_ns) {
  const ProcessSet* const set = sets_.Find(ask.set);
  if (set == nullptr) return;
  const Key key{ask.set, ask.name};
  if (!set->coordinated) {
    const auto [passed, is_new] = quiet_since_.try_emplace(key, now_ns);
    if (!is_new && now_ns - passed->second < options_.query_ns) return;
    passed->second = now_ns;
    return host_->Send(sets_.place().parent, EncodeMessage(ask));
  }
  if (ordering_.Contains(key) || queries_.count(key) > 0) return;
  Message query;
  query.kind = MessageKind::kQuery;
  query.set = ask.set;
  query.name = ask.name;
  query.query = ++last_query_;
  query.wait_ns = options_.query_ns;
  OnQuery(std::move(query), now_ns);
}

// Those below have less time the farther down they are: what they have by then
// is to arrive before the time is over here.
void StallMonitor::OnQuery(Message query, int64_t now_ns) {
  const ProcessSet* const set = sets_.Find(query.set);
  if (set == nullptr) return;
  const Key key{query.set, query.name};
  if (options_.warn_ns > 0) asked_[key].heard_ns = now_ns;
  quiet_since_[key] = now_ns;
  StallQuery& open = queries_[key];
  open = StallQuery();
  open.number = query.query;
  open.due_ns = now_ns + query.wait_ns;
  query.wait_ns = query.wait_ns / height_ * (height_ - 1);
  const std::string bytes = EncodeMessage(query);
  for (const int child : sets_.place().children) {
    if (set->need.count(child) == 0) continue;
    open.awaited.insert(child);
    host_->Send(child, bytes);
  }
  if (set->member) Take(OwnAnswer(key, now_ns), now_ns, &open);
  EndIfComplete(key, now_ns);
}

StallAnswer StallMonitor::OwnAnswer(const Key& key, int64_t now_ns) const {
  StallAnswer answer;
  const RankList self(std::vector<int>{sets_.rank()});
  const std::map<Key, int64_t> waits = own_.Waits();
  if (own_.HasSubmitted(key)) {
    answer.voted = self;
    const auto own = waits.find(key);
    const int64_t age_ns = own == waits.end() ? 0 : now_ns - own->second;
    answer.age_ms = InMs(age_ns);
  } else if (own_.executing().count(key) > 0) {
    answer.agreed = true;
  } else {
    answer.missing = self;
    WaitGroup group;
    group.waits_for = OtherWaitsText(waits, key);
    group.ranks = self;
    group.ever_compiled = own_.ever_compiled();
    group.waits_in_compiled = std::any_of(
        waits.begin(), waits.end(),
        [this](const auto& wait) { return own_.IsCompiled(wait.first); });
    group.compiling = host_->Compiling();
    answer.waits.push_back(std::move(group));
  }
  return answer;
}

// An answer to an earlier query, of a rank that was stopped meanwhile, says
// nothing about this one.
void StallMonitor::OnAnswer(int child, const Message& answer, int64_t now_ns) {
  const Key key{answer.set, answer.name};
  const auto query = queries_.find(key);
  if (query == queries_.end() || query->second.number != answer.query ||
      query->second.awaited.erase(child) == 0) {
    return;
  }
  Take(answer.answer, now_ns, &query->second);
  EndIfComplete(key, now_ns);
}

// The age of a wait is kept as the time when it began.
void StallMonitor::Take(const StallAnswer& answer, int64_t now_ns,
                        StallQuery* query) {
  query->answer = Merge(query->answer, answer);
  if (answer.voted.empty()) return;
  const int64_t since_ns = now_ns - int64_t{answer.age_ms} * kMs;
  query->since_ns = std::min(query->since_ns, since_ns);
}

// The coordinator waits even if all have answered: the request may be about to
// complete.
void StallMonitor::EndIfComplete(const Key& key, int64_t now_ns) {
  const bool complete = queries_.at(key).awaited.empty();
  const ProcessSet* const set = sets_.Find(key.first);
  if (!complete || set == nullptr || set->coordinated) return;
  EndQuery(key, now_ns);
}

// What has not come by now comes too late.
void StallMonitor::EndQuery(const Key& key, int64_t now_ns) {
  const auto found = queries_.find(key);
  const StallQuery query = std::move(found->second);
  queries_.erase(found);
  const ProcessSet* const set = sets_.Find(key.first);
  if (set == nullptr) return;
  StallReport report;
  report.answer = query.answer;
  report.answer.silent = Silent(query, *set->members);
  report.age_ns = query.answer.voted.empty() ? 0 : now_ns - query.since_ns;
  if (set->coordinated) return Report(key, report);
  Message message;
  message.kind = MessageKind::kAnswer;
  message.set = key.first;
  message.name = key.second;
  message.query = query.number;
  message.answer = std::move(report.answer);
  message.answer.age_ms = InMs(report.age_ns);
  host_->Send(sets_.place().parent, EncodeMessage(message));
}

// With the members below a child that has not answered.
RankList StallMonitor::Silent(const StallQuery& query,
                              const std::vector<int>& members) const {
  RankList silent = query.answer.silent;
  for (size_t i = 0; i < sets_.place().children.size(); ++i) {
    if (query.awaited.count(sets_.place().children[i]) == 0) continue;
    const std::vector<int>& below = sets_.place().below[i];
    std::vector<int> ranks;
    std::set_intersection(below.begin(), below.end(), members.begin(),
                          members.end(), std::back_inserter(ranks));
    silent = Merge(silent, RankList(ranks));
  }
  return silent;
}

void StallMonitor::ForgetSet(int32_t set) {
  const auto drop = [set](auto* table) {
    for (auto it = table->begin(); it != table->end();) {
      it = it->first.first == set ? table->erase(it) : std::next(it);
    }
  };
  drop(&queries_);
  drop(&quiet_since_);
}

// The age of the wait is what the answers say. Whoever asked may have asked
// about a request that was put in order meanwhile, and the name be in use for
// the next one.
void StallMonitor::Report(const Key& key, const StallReport& result) {
  const StallAnswer& answer = result.answer;
  if (options_.warn_ns <= 0 || answer.agreed) return;
  if (answer.missing.empty() && answer.silent.empty()) return;
  if (result.age_ns < options_.warn_ns) return ReportUncompiled(key, result);
  const std::string text =
      StallText(key, result.age_ns, answer, topology_.hosts);
  if (options_.fail_ns > 0 && result.age_ns >= options_.fail_ns) {
    const RankList& culprits =
        answer.missing.empty() ? answer.silent : answer.missing;
    host_->Abort(AbortRecord::kStalled, culprits.named.front(), text);
  } else {
    host_->Warn(text);
  }
}

// Nobody but a call of a compiled step asks so early. Whoever waits for
// something else and has compiled nothing will not come to that call.
void StallMonitor::ReportUncompiled(const Key& key, const StallReport& result) {
  if (result.age_ns < options_.compiled_ns + options_.query_ns) return;
  for (const WaitGroup& group : result.answer.waits) {
    if (group.ever_compiled || !group.compiling.empty()) continue;
    if (group.waits_for.empty()) continue;
    host_->Abort(
        AbortRecord::kFailed, group.ranks.named.front(),
        UncompiledText(key, result.answer.voted, group, topology_.hosts));
    return;
  }
}

}  // namespace tf_hvd
