#include "runtime/agreement/local_requests.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace tf_hvd {

bool LocalRequests::HasJoined(int32_t set) const {
  return want_join_.count(set) > 0 || queue_.count({set, kJoinName}) > 0;
}

void LocalRequests::Add(Entry entry) {
  submitted_ns_ = std::max(submitted_ns_, entry.submitted_ns);
  if (entry.request.kind == OpKind::kJoin) {
    const int32_t set = entry.set;
    entry.name = kJoinName;
    want_join_.emplace(set, std::move(entry));
    return;
  }
  ever_compiled_ = ever_compiled_ || entry.request.compiled;
  const Key key{entry.set, entry.name};
  if (IsWaitedFor(key)) {
    entry.local_error = InvalidArgument(
        "duplicate name: '" + entry.name +
        "' was submitted again before the first call was complete; "
        "give concurrent collectives different names");
  }
  if (!entry.local_error.ok()) Answer(&entry, entry.local_error);
  auto& waiting = queue_[key];
  waiting.push_back(std::move(entry));
  if (waiting.size() == 1) turns_.push_back(key);
}

// A call that was refused or given up is complete for its caller, even if it
// still waits for its turn or is being executed: a failed step may be repeated.
bool LocalRequests::IsWaitedFor(const Key& key) const {
  const auto waiting = queue_.find(key);
  if (waiting != queue_.end() &&
      std::any_of(waiting->second.begin(), waiting->second.end(),
                  [](const Entry& earlier) { return !IsAnswered(earlier); })) {
    return true;
  }
  const auto [begin, end] = executing_.equal_range(key);
  return std::any_of(begin, end, [](const auto& one) {
    const auto& caller = one.second.caller;
    return caller == nullptr || !caller->gone();
  });
}

std::vector<Key> LocalRequests::TakeTurns() {
  AdmitJoins();
  std::vector<Key> turns = std::exchange(turns_, {});
  // The set may have been removed meanwhile, or the runtime may have ended.
  const auto gone = [this](const Key& key) { return queue_.count(key) == 0; };
  turns.erase(std::remove_if(turns.begin(), turns.end(), gone), turns.end());
  return turns;
}

// Join is voted for when this rank has voted for all its other requests in that
// set: its vote counts for everything that other ranks have open.
void LocalRequests::AdmitJoins() {
  for (auto join = want_join_.begin(); join != want_join_.end();) {
    const int32_t set = join->first;
    const bool unvoted =
        std::any_of(queue_.begin(), queue_.end(), [set](const auto& waiting) {
          return waiting.first.first == set && waiting.second.size() > 1;
        });
    if (unvoted) {
      ++join;
      continue;
    }
    const Key key{set, kJoinName};
    queue_[key].push_back(std::move(join->second));
    turns_.push_back(key);
    join = want_join_.erase(join);
  }
}

std::optional<Entry> LocalRequests::Ordered(const Key& key) {
  active_.insert(key.first);
  const auto waiting = queue_.find(key);
  if (waiting == queue_.end()) return std::nullopt;
  Entry own = std::move(waiting->second.front());
  waiting->second.pop_front();
  if (waiting->second.empty()) {
    queue_.erase(waiting);
  } else {
    turns_.push_back(key);
  }
  if (!own.done.pending()) return std::nullopt;
  executing_.emplace(key, Executing{0, own.caller});
  return own;
}

void LocalRequests::Finished(const Key& key) {
  const auto first = executing_.lower_bound(key);
  if (first != executing_.end() && first->first == key) {
    executing_.erase(first);
  }
  finished_any_ = true;
}

void LocalRequests::NoteProgress(uint64_t moved, int64_t now_ns) {
  // Join waits for other ranks to finish their work. While they make progress,
  // it is not a stall.
  for (const int32_t set : std::exchange(active_, {})) {
    const auto join = queue_.find({set, kJoinName});
    if (join != queue_.end()) join->second.front().submitted_ns = now_ns;
  }
  // An ordered request waits for those before it. While anything moves, it is
  // not a stall.
  const bool moves = std::exchange(finished_any_, false) ||
                     std::exchange(moved_, moved) != moved;
  if (moves) moved_ns_ = now_ns;
  for (auto& [key, one] : executing_) {
    if (moves || one.since_ns == 0) one.since_ns = now_ns;
  }
}

void LocalRequests::FailAll(const std::function<Status(const Key& key)>& why) {
  for (auto& [key, waiting] : queue_) {
    const Status status = why(key);
    for (Entry& entry : waiting) Answer(&entry, status);
  }
  queue_.clear();
  for (auto& [set, join] : want_join_) Answer(&join, why({set, kJoinName}));
  want_join_.clear();
}

void LocalRequests::FailSet(int32_t set, const Status& status) {
  for (auto it = queue_.begin(); it != queue_.end();) {
    if (it->first.first != set) {
      ++it;
      continue;
    }
    for (Entry& entry : it->second) Answer(&entry, status);
    it = queue_.erase(it);
  }
  if (const auto join = want_join_.find(set); join != want_join_.end()) {
    Answer(&join->second, status);
    want_join_.erase(join);
  }
}

void LocalRequests::Answer(Entry* entry, const Status& status) {
  if (entry->done.pending()) tell_(std::move(entry->done), status);
}

std::map<Key, int64_t> LocalRequests::Waits() const {
  std::map<Key, int64_t> since_ns;
  for (const auto& [key, entries] : queue_) {
    const auto waiting =
        std::find_if(entries.begin(), entries.end(),
                     [](const Entry& entry) { return !IsAnswered(entry); });
    if (waiting != entries.end()) since_ns[key] = waiting->submitted_ns;
  }
  for (const auto& [set, entry] : want_join_) {
    since_ns[{set, kJoinName}] = entry.submitted_ns;
  }
  return since_ns;
}

bool LocalRequests::IsCompiled(const Key& key) const {
  const auto waiting = queue_.find(key);
  return waiting != queue_.end() && waiting->second.front().request.compiled;
}

bool LocalRequests::HasSubmitted(const Key& key) const {
  const bool wants_join =
      key.second == kJoinName && want_join_.count(key.first) > 0;
  return queue_.count(key) > 0 || wants_join ||
         queue_.count({key.first, kJoinName}) > 0;
}

}  // namespace tf_hvd
