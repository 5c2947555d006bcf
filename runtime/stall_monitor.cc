#include "runtime/stall_monitor.h"

#include <algorithm>
#include <utility>

namespace tf_hvd {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;
constexpr size_t kMaxRanksInText = 16;
constexpr size_t kMaxWaitsInText = 2;   // of one rank
constexpr size_t kMaxGroupsInText = 3;  // of ranks that wait for other things

std::string Shown(const std::string& name) {
  return name == kJoinName ? "join()" : "'" + name + "'";
}

std::string SetText(int32_t set) {
  return set == kWorldSet ? "world" : "process set " + std::to_string(set);
}

std::string Shown(const Key& key) {
  return Shown(key.second) + " (" + SetText(key.first) + ")";
}

std::string MoreText(const std::vector<int>& ranks) {
  if (ranks.size() <= kMaxRanksInText) return "";
  return " and " + std::to_string(ranks.size() - kMaxRanksInText) + " more";
}

// What a rank that has not submitted `missed` waits for instead, for people to
// read. First what has the same name, which is then in another process set.
std::vector<std::string> OtherWaits(const std::map<Key, int64_t>& waits,
                                    const Key& missed) {
  std::vector<std::string> texts;
  for (const auto& [key, since_ns] : waits) {
    const bool same_name = key.second == missed.second;
    texts.insert(
        same_name ? texts.begin() : texts.end(),
        Shown(key) +
            (same_name ? ": the same name in another process set" : ""));
  }
  if (texts.size() > kMaxWaitsInText) {
    const size_t more = texts.size() - kMaxWaitsInText;
    texts.resize(kMaxWaitsInText);
    texts.back() += " and " + std::to_string(more) + " more";
  }
  return texts;
}

std::string NumbersText(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (size_t i = 0; i < ranks.size() && i < kMaxRanksInText; ++i) {
    text += (i > 0 ? ", " : " ") + std::to_string(ranks[i]);
  }
  return text + MoreText(ranks);
}

std::string Seconds(int64_t ns) {
  return std::to_string((ns + 500 * kNsPerMs) / (1000 * kNsPerMs)) + " s";
}

}  // namespace

// This rank's requests that are not in order yet, and since when their callers
// wait. One that was refused here, or whose caller has gone, has been answered:
// only others wait for it.
std::map<Key, int64_t> StallMonitor::Waits() const {
  std::map<Key, int64_t> since_ns;
  for (const auto& [key, entries] : state_.queue) {
    const auto waiting =
        std::find_if(entries.begin(), entries.end(),
                     [](const Entry& entry) { return !IsAnswered(entry); });
    if (waiting != entries.end()) since_ns[key] = waiting->submitted_ns;
  }
  for (const auto& [set, entry] : state_.want_join) {
    since_ns[{set, kJoinName}] = entry.submitted_ns;
  }
  return since_ns;
}

void StallMonitor::Tick(int64_t now_ns) {
  if (options_.warn_ns <= 0) return;
  const std::map<Key, int64_t> waits = Waits();
  if (ExecutesTooLong(now_ns) || WaitsTooLong(waits, now_ns)) return;
  AskForWaits(waits, now_ns);
  std::vector<std::pair<Key, StallQuery>> due;
  for (const auto& [key, query] : queries_) {
    if (now_ns - query.started_ns >= options_.query_ns)
      due.emplace_back(key, query);
  }
  for (const auto& [key, query] : due) {
    queries_.erase(key);
    Report(key, query, now_ns);
  }
}

// The rank that waits ends it itself: whoever should have may be stopped.
bool StallMonitor::WaitsTooLong(const std::map<Key, int64_t>& waits,
                                int64_t now_ns) {
  const int64_t last_limit = options_.fail_ns + options_.grace_ns;
  if (options_.fail_ns <= 0) return false;
  for (const auto& [key, since_ns] : waits) {
    if (now_ns - since_ns <= last_limit) continue;
    const std::string what = " got no verdict within " + Seconds(last_limit);
    const std::vector<int> above = Above(key);
    if (!above.empty() && Unanswered(asked_[key], now_ns)) {
      // Who is nearer to the top knows better who it is, and blames a lower
      // rank: of several texts that one wins.
      AbortWait(key, above.front(), what + NoAnswerText(above));
      return true;
    }
    // Those above are well. It may wait for what is before it.
    if (now_ns - state_.moved_ns <= last_limit) continue;
    AbortWait(key, state_.rank, what);
    return true;
  }
  return false;
}

bool StallMonitor::ExecutesTooLong(int64_t now_ns) {
  const int64_t last_limit = options_.fail_ns + options_.grace_ns;
  if (options_.fail_ns <= 0) return false;
  for (const auto& [key, one] : state_.executing) {
    if (now_ns - one.since_ns <= last_limit) continue;
    std::string what =
        " was agreed by all ranks and has not moved for " + Seconds(last_limit);
    if (const int awaited = host_->Awaited(); awaited >= 0) {
      what += ": no data from " + RankText(awaited) +
              " (stopped, or its machine cannot be reached, or it waits for "
              "another rank itself)";
    }
    AbortWait(key, state_.rank, what);
    return true;
  }
  return false;
}

void StallMonitor::AbortWait(const Key& key, int rank,
                             const std::string& what) {
  host_->Abort(AbortRecord::kStalled, rank,
               Shown(key) + what + "; seen by " + RankText(state_.rank));
}

void StallMonitor::AskForWaits(const std::map<Key, int64_t>& waits,
                               int64_t now_ns) {
  for (auto it = asked_.begin(); it != asked_.end();) {
    it = waits.count(it->first) > 0 ? std::next(it) : asked_.erase(it);
  }
  for (const auto& [key, since_ns] : waits) {
    if (now_ns - since_ns < options_.warn_ns) continue;
    Asked& asked = asked_[key];
    if (asked.asked_ns == 0 || now_ns - asked.asked_ns >= options_.warn_ns) {
      asked.asked_ns = now_ns;
      asked.warned = false;
      Ask(key, now_ns);
    } else if (!asked.warned && Unanswered(asked, now_ns)) {
      asked.warned = true;
      const std::vector<int> above = Above(key);
      if (above.empty()) continue;
      host_->Warn("stall: " + Shown(key) + " waited " +
                  Seconds(now_ns - since_ns) + NoAnswerText(above));
    }
  }
}

void StallMonitor::Ask(const Key& key, int64_t now_ns) {
  Message ask;
  ask.kind = MessageKind::kAsk;
  ask.set = key.first;
  ask.name = key.second;
  OnAsk(ask, now_ns);
}

// A query that was called shortly before answers the question as well.
bool StallMonitor::Unanswered(const Asked& asked, int64_t now_ns) const {
  return asked.asked_ns > 0 &&
         now_ns - asked.asked_ns >= 2 * options_.query_ns &&
         asked.heard_ns < asked.asked_ns - 2 * options_.query_ns;
}

std::vector<int> StallMonitor::Above(const Key& key) const {
  const auto set = state_.sets.find(key.first);
  if (set == state_.sets.end()) return {};
  return PathToCover(state_.rank, *set->second.members, topology_.nodes,
                     topology_.fan_out);
}

// Who should have passed the question on, or called the query.
std::string StallMonitor::NoAnswerText(const std::vector<int>& above) const {
  std::string text = "; no answer from ";
  for (size_t i = 0; i < above.size(); ++i) {
    text += (i > 0 ? " or " : "") + RankText(above[i]);
  }
  return text +
         " (stopped, or its machine cannot be reached), who should tell which "
         "ranks are missing";
}

void StallMonitor::OnAsk(const Message& ask, int64_t now_ns) {
  const auto set = state_.sets.find(ask.set);
  if (set == state_.sets.end()) return;
  if (!set->second.covered) {
    return host_->Send(state_.place.parent, EncodeMessage(ask));
  }
  const Key key{ask.set, ask.name};
  if (state_.ready.count(key) > 0) return;
  const auto [it, is_new] = queries_.try_emplace(key);
  if (!is_new) return;
  it->second.started_ns = now_ns;
  Message call;
  call.kind = MessageKind::kQuery;
  call.set = ask.set;
  call.name = ask.name;
  OnQuery(call, now_ns);
}

void StallMonitor::OnQuery(const Message& query, int64_t now_ns) {
  const auto set = state_.sets.find(query.set);
  if (set == state_.sets.end()) return;
  if (options_.warn_ns > 0) {
    asked_[{query.set, query.name}].heard_ns = now_ns;
  }
  for (const int child : state_.place.children) {
    if (set->second.need.count(child) > 0) {
      host_->Send(child, EncodeMessage(query));
    }
  }
  if (set->second.member)
    OnAnswer(Answer({query.set, query.name}, now_ns), now_ns);
}

Message StallMonitor::Answer(const Key& key, int64_t now_ns) const {
  Message answer;
  answer.kind = MessageKind::kAnswer;
  answer.set = key.first;
  answer.name = key.second;
  answer.rank = state_.rank;
  const bool wants_join =
      key.second == kJoinName && state_.want_join.count(key.first) > 0;
  if (state_.queue.count(key) > 0 || wants_join ||
      state_.queue.count({key.first, kJoinName}) > 0) {
    answer.state = QueryState::kVoted;
    const std::map<Key, int64_t> waits = Waits();
    const auto own = waits.find(key);
    const int64_t age_ns = own == waits.end() ? 0 : now_ns - own->second;
    answer.age_ms = static_cast<uint32_t>(
        std::clamp<int64_t>(age_ns / kNsPerMs, 0, 0xffffffff));
  } else if (state_.executing.count(key) > 0) {
    answer.state = QueryState::kAgreed;
  } else {
    answer.state = QueryState::kMissing;
    answer.waits_for = OtherWaits(Waits(), key);
  }
  return answer;
}

void StallMonitor::OnAnswer(const Message& answer, int64_t now_ns) {
  const auto set = state_.sets.find(answer.set);
  if (set == state_.sets.end()) return;
  if (!set->second.covered) {
    return host_->Send(state_.place.parent, EncodeMessage(answer));
  }
  const auto query = queries_.find({answer.set, answer.name});
  if (query == queries_.end()) return;
  query->second.replies[answer.rank] = {
      answer, now_ns - int64_t{answer.age_ms} * kNsPerMs};
}

void StallMonitor::ForgetSet(int32_t set) {
  for (auto it = queries_.begin(); it != queries_.end();) {
    it = it->first.first == set ? queries_.erase(it) : std::next(it);
  }
}

std::string StallMonitor::RankText(int rank) const {
  return "rank " + std::to_string(rank) + " (" +
         topology_.hosts[static_cast<size_t>(rank)] + ")";
}

std::string StallMonitor::ListText(const std::vector<int>& ranks) const {
  std::string text;
  for (size_t i = 0; i < ranks.size() && i < kMaxRanksInText; ++i) {
    text += (i > 0 ? ", " : "") + RankText(ranks[i]);
  }
  return text + MoreText(ranks);
}

// The missing ranks, and what they wait for instead: ranks that wait for the
// same are named together.
std::string StallMonitor::MissingText(const StallQuery& query,
                                      const std::vector<int>& ranks) const {
  std::string text = "; missing " + ListText(ranks);
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (const int rank : ranks) {
    std::string waits;
    for (const std::string& wait : query.replies.at(rank).answer.waits_for) {
      waits += (waits.empty() ? "" : ", ") + wait;
    }
    if (waits.empty()) waits = "no collective";
    const auto same =
        std::find_if(groups.begin(), groups.end(),
                     [&](const auto& group) { return group.first == waits; });
    if (same != groups.end()) {
      same->second.push_back(rank);
    } else if (groups.size() < kMaxGroupsInText) {
      groups.push_back({waits, {rank}});
    }
  }
  for (const auto& [waits, waiting] : groups) {
    text += "; " + NumbersText(waiting) +
            (waiting.size() == 1 ? " waits for " : " wait for ") + waits;
  }
  return text;
}

std::string StallMonitor::StallText(const Key& key, const StallQuery& query,
                                    const QueryResult& result) const {
  std::string text =
      "stall: " + Shown(key) + " waited " + Seconds(result.age_ns);
  if (!result.voted.empty()) {
    text += ": submitted by " + ListText(result.voted);
  }
  if (!result.missing.empty()) text += MissingText(query, result.missing);
  if (!result.silent.empty()) {
    text += "; no answer from " + ListText(result.silent) +
            " (stopped, or cut off behind a rank that is)";
  }
  return text +
         ". Ranks must make the same collective calls, with the same names and "
         "process sets: look for a branch that depends on the rank, fewer "
         "batches on one rank, a step that one rank makes again, or a "
         "Session.run that fetches it on some ranks only";
}

// The age of the wait is what the replies say. Whoever asked may have asked
// about a request that was put in order meanwhile, and the name be in use for
// the next one.
StallMonitor::QueryResult StallMonitor::Evaluate(
    const StallQuery& query, const std::vector<int>& members,
    int64_t now_ns) const {
  QueryResult result;
  for (const int rank : members) {
    const auto reply = query.replies.find(rank);
    if (reply == query.replies.end()) {
      result.silent.push_back(rank);
      continue;
    }
    switch (reply->second.answer.state) {
      case QueryState::kAgreed:
        return {};  // it has been put in order meanwhile
      case QueryState::kVoted:
        result.voted.push_back(rank);
        result.age_ns =
            std::max(result.age_ns, now_ns - reply->second.since_ns);
        break;
      case QueryState::kMissing:
        result.missing.push_back(rank);
        break;
    }
  }
  return result;
}

void StallMonitor::Report(const Key& key, const StallQuery& query,
                          int64_t now_ns) {
  const auto set = state_.sets.find(key.first);
  if (set == state_.sets.end()) return;
  const QueryResult result = Evaluate(query, *set->second.members, now_ns);
  if (result.missing.empty() && result.silent.empty()) return;
  if (result.age_ns < options_.warn_ns) return;
  const std::string text = StallText(key, query, result);
  if (options_.fail_ns > 0 && result.age_ns >= options_.fail_ns) {
    const int culprit =
        result.missing.empty() ? result.silent.front() : result.missing.front();
    host_->Abort(AbortRecord::kStalled, culprit, text);
  } else {
    host_->Warn(text);
  }
}

}  // namespace tf_hvd
