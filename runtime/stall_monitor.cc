#include "runtime/stall_monitor.h"

#include <algorithm>
#include <utility>

namespace tf_hvd {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;
constexpr size_t kMaxRanksInText = 16;

std::string Shown(const std::string& name) {
  return name == kJoinName ? "join()" : "'" + name + "'";
}

std::string SetText(int32_t set) {
  return set == kWorldSet ? "world" : "process set " + std::to_string(set);
}

std::string Seconds(int64_t ns) {
  return std::to_string((ns + 500 * kNsPerMs) / (1000 * kNsPerMs)) + " s";
}

}  // namespace

void StallMonitor::Tick(int64_t now_ns) {
  if (options_.warn_ns <= 0) return;
  const int64_t last_limit = options_.fail_ns + options_.grace_ns;
  const auto too_old = [&](int64_t age_ns) {
    return options_.fail_ns > 0 && age_ns > last_limit;
  };
  for (const auto& [key, submitted_ns] : ledger_.executing) {
    if (!too_old(now_ns - submitted_ns)) continue;
    return host_->Abort(AbortRecord::kStalled, ledger_.rank,
                        Shown(key.second) + " (" + SetText(key.first) +
                            ") was agreed by all ranks and did not end within " +
                            Seconds(last_limit) + "; seen by " +
                            RankText(ledger_.rank));
  }
  std::vector<std::pair<Key, int64_t>> waits;
  for (const auto& [key, entries] : ledger_.queue) {
    if (!entries.empty() && entries.front().done.pending()) {
      waits.emplace_back(key, now_ns - entries.front().submitted_ns);
    }
  }
  for (auto it = next_ask_ns_.begin(); it != next_ask_ns_.end();) {
    it = ledger_.queue.count(it->first) > 0 ? std::next(it)
                                            : next_ask_ns_.erase(it);
  }
  for (const auto& [key, age_ns] : waits) {
    if (too_old(age_ns)) {
      return host_->Abort(AbortRecord::kStalled, ledger_.rank,
                          Shown(key.second) + " (" + SetText(key.first) +
                              ") got no verdict within " +
                              Seconds(last_limit) + "; seen by " +
                              RankText(ledger_.rank));
    }
    Ask(key, age_ns, now_ns);
  }
  std::vector<std::pair<Key, Roll>> due;
  for (const auto& [key, roll] : rolls_) {
    if (now_ns - roll.started_ns >= options_.roll_ns) due.emplace_back(key, roll);
  }
  for (const auto& [key, roll] : due) {
    rolls_.erase(key);
    Report(key, roll, roll.age_ns + (now_ns - roll.started_ns));
  }
}

void StallMonitor::Ask(const Key& key, int64_t age_ns, int64_t now_ns) {
  if (age_ns < options_.warn_ns) return;
  int64_t& next = next_ask_ns_[key];
  if (now_ns < next) return;
  next = now_ns + options_.warn_ns;
  Message ask;
  ask.kind = MessageKind::kAsk;
  ask.set = key.first;
  ask.name = key.second;
  ask.age_ms = static_cast<uint32_t>(
      std::min<int64_t>(age_ns / kNsPerMs, 0xffffffff));
  OnAsk(ask, now_ns);
}

void StallMonitor::OnAsk(const Message& ask, int64_t now_ns) {
  const auto set = ledger_.sets.find(ask.set);
  if (set == ledger_.sets.end()) return;
  if (!set->second.covered) {
    return host_->Send(ledger_.place.parent, EncodeMessage(ask));
  }
  const Key key{ask.set, ask.name};
  if (ledger_.ready.count(key) > 0) return;
  const int64_t age_ns = int64_t{ask.age_ms} * kNsPerMs;
  const auto [it, is_new] = rolls_.try_emplace(key);
  Roll& roll = it->second;
  if (!is_new) {
    roll.age_ns =
        std::max(roll.age_ns, age_ns - (now_ns - roll.started_ns));
    return;
  }
  roll.started_ns = now_ns;
  roll.age_ns = age_ns;
  Message call;
  call.kind = MessageKind::kRoll;
  call.set = ask.set;
  call.name = ask.name;
  OnRoll(call);
}

void StallMonitor::OnRoll(const Message& roll) {
  const auto set = ledger_.sets.find(roll.set);
  if (set == ledger_.sets.end()) return;
  for (const int child : ledger_.place.children) {
    if (set->second.need.count(child) > 0) {
      host_->Send(child, EncodeMessage(roll));
    }
  }
  if (set->second.member) OnAnswer(Answer({roll.set, roll.name}));
}

Message StallMonitor::Answer(const Key& key) const {
  Message answer;
  answer.kind = MessageKind::kAnswer;
  answer.set = key.first;
  answer.name = key.second;
  answer.rank = ledger_.rank;
  const bool queued = ledger_.queue.count(key) > 0;
  if (queued || ledger_.queue.count({key.first, kJoinName}) > 0) {
    answer.state = RollState::kVoted;
  } else if (ledger_.executing.count(key) > 0) {
    answer.state = RollState::kAgreed;
  } else {
    answer.state = RollState::kMissing;
    for (const auto& [other, entries] : ledger_.queue) {
      if (answer.waits_for.size() < 2) answer.waits_for.push_back(other.second);
    }
  }
  return answer;
}

void StallMonitor::OnAnswer(const Message& answer) {
  const auto set = ledger_.sets.find(answer.set);
  if (set == ledger_.sets.end()) return;
  if (!set->second.covered) {
    return host_->Send(ledger_.place.parent, EncodeMessage(answer));
  }
  const auto roll = rolls_.find({answer.set, answer.name});
  if (roll != rolls_.end()) roll->second.answers[answer.rank] = answer;
}

void StallMonitor::ForgetSet(int32_t set) {
  for (auto it = rolls_.begin(); it != rolls_.end();) {
    it = it->first.first == set ? rolls_.erase(it) : std::next(it);
  }
}

std::string StallMonitor::RankText(int rank) const {
  return "rank " + std::to_string(rank) + " (" +
         hosts_[static_cast<size_t>(rank)] + ")";
}

std::string StallMonitor::ListText(const std::vector<int>& ranks) const {
  std::string text;
  for (size_t i = 0; i < ranks.size() && i < kMaxRanksInText; ++i) {
    text += (i > 0 ? ", " : "") + RankText(ranks[i]);
  }
  if (ranks.size() > kMaxRanksInText) {
    text += " and " + std::to_string(ranks.size() - kMaxRanksInText) + " more";
  }
  return text;
}

std::string StallMonitor::MissingText(const Roll& roll,
                                      const std::vector<int>& ranks) const {
  std::string text = "; missing " + ListText(ranks);
  for (const int rank : ranks) {
    const auto& waits_for = roll.answers.at(rank).waits_for;
    if (waits_for.empty()) continue;
    text += "; rank " + std::to_string(rank) + " waits for";
    for (const std::string& name : waits_for) text += " " + Shown(name);
    break;
  }
  return text;
}

void StallMonitor::Report(const Key& key, const Roll& roll, int64_t age_ns) {
  const auto set = ledger_.sets.find(key.first);
  if (set == ledger_.sets.end()) return;
  std::vector<int> voted;
  std::vector<int> missing;
  std::vector<int> silent;
  for (const int rank : *set->second.members) {
    const auto answer = roll.answers.find(rank);
    if (answer == roll.answers.end()) {
      silent.push_back(rank);
    } else if (answer->second.state == RollState::kAgreed) {
      return;  // it has been put in order meanwhile
    } else {
      (answer->second.state == RollState::kVoted ? voted : missing)
          .push_back(rank);
    }
  }
  if (missing.empty() && silent.empty()) return;

  std::string text = Shown(key.second) + " (" + SetText(key.first) +
                     ") waited " + Seconds(age_ns);
  if (!voted.empty()) text += ": submitted by " + ListText(voted);
  if (!missing.empty()) text += MissingText(roll, missing);
  if (!silent.empty()) {
    text += "; no answer from " + ListText(silent) +
            " (stopped, or cut off behind a rank that is)";
  }
  text +=
      ". Ranks must make the same collective calls: look for a branch that "
      "depends on the rank, fewer batches on one rank, or a result that is "
      "used on some ranks only (an unused collective is pruned)";
  if (options_.fail_ns > 0 && age_ns >= options_.fail_ns) {
    host_->Abort(AbortRecord::kStalled,
                 missing.empty() ? silent.front() : missing.front(),
                 "stall: " + text);
  } else {
    host_->Warn("stall: " + text);
  }
}

}  // namespace tf_hvd
