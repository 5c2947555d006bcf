#include "runtime/agreement/stall_monitor.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "runtime/agreement/stall_text.h"

namespace tf_hvd {
namespace {

// Levels of the tree below `rank`; some may have no ranks.
int HeightBelow(int rank, const Topology& topology) {
  int height = 1;  // the other ranks on its node
  const auto arity = static_cast<size_t>(topology.fan_out);
  auto node = static_cast<size_t>(topology.NodeOf(rank));
  while ((node = node * arity + 1) < topology.nodes.size()) ++height;
  return height;
}

// The share of a query's time that a program has to report its line: 1/10.
constexpr int64_t kPlaceShare = 10;

// An age in its wire form.
uint32_t InMs(int64_t age_ns) {
  return static_cast<uint32_t>(
      std::clamp<int64_t>(age_ns / kMs, 0, 0xffffffff));
}

// No limit may exceed the one that ends every wait.
StallOptions Limited(StallOptions options) {
  options.stuck_ns = std::min(options.stuck_ns, options.fail_ns);
  return options;
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
      options_(Limited(options)),
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
  AnswerDelayed(now_ns);
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
    if (set == nullptr) continue;
    if (query.own_ns > 0) due_ns = std::min(due_ns, query.own_ns);
    if (!set->coordinated) due_ns = std::min(due_ns, query.due_ns);
  }
  return due_ns;
}

// The waiting rank ends the job itself, because the rank that should do so may
// be stopped.
bool StallMonitor::WaitsTooLong(const std::map<Key, int64_t>& waits,
                                int64_t now_ns) {
  const int64_t silent_limit = options_.stuck_ns + options_.grace_ns;
  const int64_t last_limit = options_.fail_ns + options_.grace_ns;
  if (options_.fail_ns <= 0) return false;
  // The ranks above do answer. If the previous call of the same name has not
  // moved, they know which rank's data is missing and must report first
  // (ExecutesTooLong).
  const int64_t answered_limit = last_limit + 2 * options_.grace_ns;
  const auto text = [](int64_t limit_ns) {
    return " got no decision within " + SecondsText(limit_ns);
  };
  for (const auto& [key, since_ns] : waits) {
    if (now_ns - since_ns <= silent_limit) continue;
    const std::vector<int> above = Above(key);
    const Asked& asked = asked_[key];
    if (!above.empty() && now_ns - asked.heard_ns > silent_limit &&
        Unanswered(asked, now_ns)) {
      // Ranks nearer to the top know better which rank it is, and blame a lower
      // rank: of several texts that one wins.
      AbortWait(key, above.front(),
                text(silent_limit) + NoAnswerText(above, topology_.hosts));
      return true;
    }
    // The ranks above are alive. The request may wait for an earlier one.
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
  // A rank on this node may itself wait for another node. It knows which rank
  // it waits for, so it may report first.
  const bool here = awaited >= 0 && topology_.nodes.size() > 1 &&
                    topology_.NodeOf(awaited) == topology_.NodeOf(sets_.rank());
  const int64_t last_limit =
      options_.stuck_ns + (here ? 2 : 1) * options_.grace_ns;
  for (const auto& [key, one] : own_.executing()) {
    if (now_ns - one.since_ns <= last_limit) continue;
    std::string what = " was agreed by all ranks and has not moved for " +
                       SecondsText(last_limit);
    if (awaited >= 0) {
      what += ": no data from " + RankText(awaited, topology_.hosts) +
              " (stopped, unreachable, or itself waiting for another rank)";
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
    if (AsksNow(asked, since_ns, now_ns)) {
      // A rank that asks more often than answers arrive still counts as
      // waiting.
      if (asked.asked_ns == 0 || Heard(asked)) asked.since_ns = now_ns;
      asked.asked_ns = now_ns;
      if (options_.fail_ns <= 0 || age_ns < options_.fail_ns) {
        asked.warned = false;
      }
      Ask(key, /*early=*/false, now_ns);
    } else if (!asked.warned && Unanswered(asked, now_ns)) {
      asked.warned = true;
      const std::vector<int> above = Above(key);
      if (above.empty()) continue;
      host_->Warn("stall: " + Shown(key) + " waited " + SecondsText(age_ns) +
                  NoAnswerText(above, topology_.hosts));
    }
  }
}

// After a limit the next report may end the job. It must do so within the grace
// time, before the waiting ranks, which know less, end it.
bool StallMonitor::AsksNow(const Asked& asked, int64_t since_ns,
                           int64_t now_ns) const {
  const auto over = [since_ns](int64_t limit_ns, int64_t at_ns) {
    return limit_ns > 0 && at_ns - since_ns >= limit_ns;
  };
  const bool last = over(options_.fail_ns, now_ns);
  const int64_t beat_ns = last ? options_.query_ns : options_.warn_ns;
  return asked.asked_ns == 0 || now_ns - asked.asked_ns >= beat_ns ||
         (over(options_.stuck_ns, now_ns) &&
          !over(options_.stuck_ns, asked.asked_ns));
}

void StallMonitor::AskEarly(const Key& key, int64_t age_ns, int64_t now_ns) {
  if (age_ns < options_.compiled_ns || !own_.IsCompiled(key)) return;
  Asked& asked = asked_[key];
  if (!std::exchange(asked.early, true)) Ask(key, /*early=*/true, now_ns);
}

void StallMonitor::Ask(const Key& key, bool early, int64_t now_ns) {
  Message ask;
  ask.kind = MessageKind::kAsk;
  ask.early = early;
  ask.set = key.first;
  ask.name = key.second;
  OnAsk(ask, now_ns);
}

// A query that arrived shortly before answers this question as well.
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

// A question that was passed on shortly before, or its query, covers this one:
// the coordinator would ignore it.
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
  query.early = ask.early;
  query.query = ++last_query_;
  query.wait_ns = options_.query_ns;
  OnQuery(std::move(query), now_ns);
}

// The lower a rank, the less time it has: its answer must arrive before the
// time is over here.
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
  const bool missing = set->member && !own_.HasSubmitted(key) &&
                       own_.executing().count(key) == 0;
  if (missing && !query.early && host_->AskPlace()) {
    // The ranks above wait longer than this: each level has its share of the
    // time.
    open.own_ns = now_ns + options_.query_ns / kPlaceShare;
    open.due_ns = std::max(open.due_ns, open.own_ns);
    return;
  }
  if (set->member) Take(OwnAnswer(key, now_ns), now_ns, &open);
  EndIfComplete(key, now_ns);
}

// The program has had its time to report its line.
void StallMonitor::AnswerDelayed(int64_t now_ns) {
  std::vector<Key> due;
  for (auto& [key, query] : queries_) {
    if (query.own_ns == 0 || now_ns < query.own_ns) continue;
    query.own_ns = 0;
    Take(OwnAnswer(key, now_ns), now_ns, &query);
    due.push_back(key);
  }
  for (const Key& key : due) EndIfComplete(key, now_ns);
}

StallAnswer StallMonitor::OwnAnswer(const Key& key, int64_t now_ns) const {
  StallAnswer answer;
  const RankList self(std::vector<int>{sets_.rank()});
  const std::map<Key, int64_t> waits = own_.Waits();
  answer.stuck_ms = StuckMs(key.first, waits, now_ns);
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
    group.place = host_->Place();
    answer.waits.push_back(std::move(group));
  }
  return answer;
}

// A rank that waits for a rank outside the set may be waiting for one that is
// busy. Ordered requests make progress, or end by their own limit.
uint32_t StallMonitor::StuckMs(int32_t set, const std::map<Key, int64_t>& waits,
                               int64_t now_ns) const {
  if (!own_.executing().empty() || !host_->Compiling().empty()) return 0;
  const std::vector<int>& members = *sets_.Find(set)->members;
  const bool stuck =
      std::any_of(waits.begin(), waits.end(), [&](const auto& wait) {
        const ProcessSet* const other = sets_.Find(wait.first.first);
        return other != nullptr &&
               std::includes(members.begin(), members.end(),
                             other->members->begin(), other->members->end());
      });
  const int64_t since_ns = std::max(own_.submitted_ns(), own_.moved_ns());
  return stuck ? InMs(now_ns - since_ns) : 0;
}

// Ignores an answer to an earlier query, from a rank that was stopped
// meanwhile.
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

// The age of a wait is stored as the time when it began.
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
  const StallQuery& query = queries_.at(key);
  const bool complete = query.awaited.empty() && query.own_ns == 0;
  const ProcessSet* const set = sets_.Find(key.first);
  if (!complete || set == nullptr || set->coordinated) return;
  EndQuery(key, now_ns);
}

// Later answers are ignored.
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
  report.now_ns = now_ns;
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

// Includes the members below a child that has not answered.
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
  drop(&silence_);
  drop(&quiet_since_);
}

// How long a rank has answered no query about this wait. For a rank that
// answered before, counts from its last answer: it may have been busy, and a
// short stop must not end a job in which other ranks have waited for long.
int64_t StallMonitor::SilentNs(const Key& key, const StallReport& result) {
  const std::vector<int32_t>& silent = result.answer.silent.named;
  const auto [it, is_new] = silence_.try_emplace(key);
  Silence& known = it->second;
  std::vector<int32_t> still;
  std::set_intersection(known.ranks.begin(), known.ranks.end(), silent.begin(),
                        silent.end(), std::back_inserter(still));
  if (still.empty()) {
    still = silent;
    known.since_ns = is_new ? result.now_ns - result.age_ns : known.reported_ns;
  }
  known.ranks = std::move(still);
  known.reported_ns = result.now_ns;
  return silent.empty() ? 0 : result.now_ns - known.since_ns;
}

// Takes the age of the wait from the answers. The question may have been about
// a request that was ordered meanwhile, with the name in use again.
void StallMonitor::Report(const Key& key, const StallReport& result) {
  const StallAnswer& answer = result.answer;
  if (options_.warn_ns <= 0 || answer.agreed) return;
  if (answer.missing.empty() && answer.silent.empty()) return;
  if (result.age_ns < options_.warn_ns) return ReportUncompiled(key, result);
  const bool ends = options_.stuck_ns > 0;
  const bool unheard = SilentNs(key, result) >= options_.stuck_ns;
  const int64_t all_wait_ns =
      answer.silent.empty() ? int64_t{answer.stuck_ms} * kMs : 0;
  const bool deadlock = ends && all_wait_ns >= options_.stuck_ns;
  const std::string text = StallText(
      key, result.age_ns, answer, deadlock ? all_wait_ns : 0, topology_.hosts);
  if (ends && (unheard || deadlock || result.age_ns >= options_.fail_ns)) {
    const RankList& culprits =
        unheard || answer.missing.empty() ? answer.silent : answer.missing;
    host_->Abort(AbortRecord::kStalled, culprits.named.front(), text);
  } else {
    host_->Warn(text);
  }
}

// Only a call in a compiled step asks this early. Ranks that wait for another
// call and have compiled nothing will not make that call.
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
