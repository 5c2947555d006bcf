#include "tests/runtime/protocol/checks.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "runtime/agreement/stall_monitor.h"
#include "runtime/request/request.h"
#include "tests/runtime/protocol/event_queue.h"

namespace tf_hvd::protocol_test {
namespace {

// The last limit, two checks, an ABORT's latency and the callback.
constexpr int64_t kLongestWaitNs = 436 * kSecond;
// The limit of a rank's stall query, and the longest time between two checks.
constexpr int64_t kQueryNs = 3 * kSecond;

// The longest latency of a batch down the tree, and the callback.
constexpr int64_t kBatchNs = kSecond / 2;

using Instance = std::tuple<int32_t, std::string, int>;

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

bool StartsWith(const std::string& text, const std::string& start) {
  return text.compare(0, start.size(), start) == 0;
}

std::string Described(const Submission& s) {
  return "rank " + std::to_string(s.rank) + ", set " + std::to_string(s.set) +
         ", '" + s.name + "' #" + std::to_string(s.instance) + ": " +
         (s.status.ok() ? "ok " + std::to_string(s.value) : s.status.message());
}

// A local error is first reported to its caller, in the same words but without
// the rank.
bool RefusedHere(const Submission& s) {
  return s.status.code() == StatusCode::kInvalidArgument &&
         (StartsWith(s.status.message(), "duplicate name") ||
          (!s.local_error.empty() && s.status.message() == s.local_error));
}

// A waiting rank's own limit names the rank that saw it; which rank is first is
// a race between waits of the same age.
std::string Cause(const Submission& s) {
  const std::string& text = s.status.message();
  const size_t end =
      std::min(text.find("; seen by "), text.find("; no answer from "));
  return Contains(text, " got no decision ") ? text.substr(0, end) : text;
}

// The possible errors in a scenario.
std::vector<std::string> ErrorsOf(Scenario scenario) {
  switch (scenario) {
    case Scenario::kMismatch:
      return {"mismatch"};
    case Scenario::kRefusal:
      return {"cannot be a scalar"};
    case Scenario::kJoin:
    case Scenario::kJoinSets:
      return {"cannot be a scalar", "a rank has already joined"};
    case Scenario::kDynamicSets:
      return {"was removed"};
    case Scenario::kDuplicateAll:
      return {"duplicate name"};
    case Scenario::kDuplicateOne:
      return {"duplicate name", "stall: ", " left: ", " is at step "};
    case Scenario::kMissing:
      // Reported with the name, not through a waiting rank's last limit.
      return {"mismatch", "; missing rank "};
    case Scenario::kLeave:
      return {" left: "};
    case Scenario::kLateRank:
      // The call that waited for the late rank may still be queued behind
      // others at the limit. Another check ensures that some rank did wait.
      return {"stall: "};
    case Scenario::kDeath:
      return {" died"};
    default:
      return {};
  }
}

bool MayAbort(Scenario scenario) {
  switch (scenario) {
    case Scenario::kDuplicateOne:
    case Scenario::kDuplicateAll:
    case Scenario::kMissing:
    case Scenario::kLateRank:
    case Scenario::kDeath:
    case Scenario::kStopped:
      return true;
    default:
      return false;
  }
}

class Checker {
 public:
  explicit Checker(const History& history) : h_(history) {
    for (const Submission& s : h_.submissions) {
      if (s.late || s.orphan || !h_.Alive(s.rank)) continue;
      instances_[{s.set, s.name, s.instance}].push_back(&s);
    }
  }

  std::string Run() {
    CheckAnswered();
    CheckInstances();
    CheckScenario();
    CheckOrders();
    CheckAcyclic();
    for (const StallReport& report : h_.reports) CheckReport(report);
    CheckDeath();
    CheckJoins();
    CheckSetNumbers();
    return found_;
  }

 private:
  void Fail(const std::string& what) {
    if (found_.empty()) found_ = what;
  }
  bool Disturbed() const {
    return h_.abort_ns >= 0 || !h_.dead.empty() || !h_.stopped.empty();
  }
  bool ErrorExpected(const Submission& s) const;
  bool SubmittedByAll(const Submission& s) const;
  bool Waits(const Submission& s, int32_t set, const std::string& name,
             int64_t since_ns, int64_t until_ns) const;
  void CheckAnswered();
  void CheckInstances();
  void CheckInstance(const std::vector<const Submission*>& calls);
  void CheckScenario();
  void CheckOrders();
  void CheckAcyclic();
  void CheckReport(const StallReport& report);
  void CheckNamed(const StallReport& report, int32_t set,
                  const std::string& name);
  bool CouldAnswer(int rank, const StallReport& report) const;
  void CheckDeath();
  void CheckJoins();
  void CheckSetNumbers();

  const History& h_;
  std::map<Instance, std::vector<const Submission*>> instances_;
  std::string found_;
};

void Checker::CheckAnswered() {
  for (const Submission& s : h_.submissions) {
    if (s.orphan || !h_.Alive(s.rank)) continue;
    if (s.fired != 1) return Fail("waits indefinitely: " + Described(s));
    if (s.end_ns - s.start_ns > kLongestWaitNs) {
      return Fail("waited too long: " + Described(s));
    }
    if (Contains(s.status.message(), "bug in tf_hvd")) {
      return Fail(Described(s));
    }
  }
}

void Checker::CheckInstances() {
  for (const auto& [key, calls] : instances_) CheckInstance(calls);
}

// All members' k-th call succeeds with the same result, or all fail with the
// same text. After a death or an ABORT some may have succeeded before.
void Checker::CheckInstance(const std::vector<const Submission*>& calls) {
  const Submission* ok = nullptr;
  const Submission* failed = nullptr;
  for (const Submission* s : calls) {
    if (!s->status.ok() && RefusedHere(*s)) {
      if (failed == nullptr && ok != nullptr && !Disturbed()) {
        Fail("differ: " + Described(*s) + " / " + Described(*ok));
      }
      continue;
    }
    const Submission*& first = s->status.ok() ? ok : failed;
    if (first == nullptr) first = s;
    const bool same =
        s->status.ok() ? s->value == first->value : Cause(*s) == Cause(*first);
    const bool two_causes = h_.dead.size() + h_.stopped.size() > 1;
    if (!same && !two_causes) {
      Fail("differ: " + Described(*s) + " / " + Described(*first));
    }
  }
  if (ok != nullptr && failed != nullptr && !Disturbed()) {
    Fail("differ: " + Described(*ok) + " / " + Described(*failed));
  }
}

bool Checker::SubmittedByAll(const Submission& s) const {
  const auto& members = h_.members.at(s.set);
  return instances_.at({s.set, s.name, s.instance}).size() == members.size();
}

bool Checker::ErrorExpected(const Submission& s) const {
  const std::string& text = s.status.message();
  if (s.name == "after the end" && h_.abort_ns < 0) {
    return Contains(text, " left: ");
  }
  if (s.late) return Contains(text, "has joined and cannot submit");
  if (Contains(text, "a rank has already joined") && SubmittedByAll(s)) {
    return false;
  }
  if (h_.scenario == Scenario::kStopped || h_.unseen_death) return true;
  const std::vector<std::string> words = ErrorsOf(h_.scenario);
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    return Contains(text, word);
  });
}

void Checker::CheckScenario() {
  for (const Submission& s : h_.submissions) {
    if (s.orphan || !h_.Alive(s.rank)) continue;
    if (s.late && s.status.ok()) Fail("not refused: " + Described(s));
    if (!s.status.ok() && !ErrorExpected(s)) {
      return Fail("unexpected: " + Described(s));
    }
    const bool left = Contains(s.status.message(), " left: ");
    if (left && s.end_ns - std::max(s.start_ns, h_.leave_ns) > 5 * kSecond) {
      Fail("the end came late: " + Described(s));
    }
  }
  if (!MayAbort(h_.scenario) && h_.abort_ns >= 0) Fail("unnecessary ABORT");
}

// Names and errors were compared while running. Checks here that every member
// executes a prefix of the set's order, and all of it if nothing was cut off.
void Checker::CheckOrders() {
  for (const auto& [key, ordered] : h_.order) {
    const auto& members = h_.members.at(key.first);
    if (!Disturbed() && ordered.ranks.size() != members.size()) {
      Fail("'" + ordered.name + "' of set " + std::to_string(key.first) +
           " was executed by some members only");
    }
  }
}

void Checker::CheckAcyclic() {
  std::map<OrderKey, std::set<OrderKey>> after;
  std::map<OrderKey, int> before;
  for (const auto& [rank, keys] : h_.executed) {
    for (size_t i = 0; i < keys.size(); ++i) {
      before.try_emplace(keys[i], 0);
      if (i > 0 && after[keys[i - 1]].insert(keys[i]).second) ++before[keys[i]];
    }
  }
  std::vector<OrderKey> first;
  for (const auto& [key, count] : before) {
    if (count == 0) first.push_back(key);
  }
  size_t done = 0;
  while (!first.empty()) {
    const OrderKey key = first.back();
    first.pop_back();
    ++done;
    for (const OrderKey& next : after[key]) {
      if (--before[next] == 0) first.push_back(next);
    }
  }
  if (done != before.size()) Fail("the ranks' orders form a cycle");
}

bool Checker::Waits(const Submission& s, int32_t set, const std::string& name,
                    int64_t since_ns, int64_t until_ns) const {
  return s.set == set && s.name == name && !s.late && s.start_ns <= since_ns &&
         (s.fired == 0 || s.end_ns >= until_ns);
}

// The request that a report is about, from its text: "stall: 'g1' (world)
// waited".
std::optional<std::pair<int32_t, std::string>> Subject(
    const std::string& text) {
  const size_t start = text.find(text.find("join()") == 7 ? "join()" : "'");
  const size_t end = text.find(" (", start);
  if (start == std::string::npos || end == std::string::npos) {
    return std::nullopt;
  }
  std::string name = text.substr(start, end - start);
  name = name == "join()" ? kJoinName : name.substr(1, name.size() - 2);
  const std::string set_word = "process set ";
  int32_t set = kWorldSet;
  if (text.compare(end + 2, set_word.size(), set_word) == 0) {
    set = std::atoi(text.c_str() + end + 2 + set_word.size());
  }
  return std::make_pair(set, name);
}

// A report is about a request that some rank has waited for that long.
void Checker::CheckReport(const StallReport& report) {
  if (!StartsWith(report.text, "stall: "))
    return;  // by a waiting rank's own limit
  const auto subject = Subject(report.text);
  if (!subject.has_value()) return Fail("unreadable: " + report.text);
  const auto& [set, name] = *subject;
  const StallOptions limits = StallLimits();
  const int64_t age_ns = report.fatal ? limits.stuck_ns : limits.warn_ns;
  const bool waited = std::any_of(
      h_.submissions.begin(), h_.submissions.end(), [&](const Submission& s) {
        return Waits(s, subject->first, subject->second,
                     report.time_ns - age_ns, report.time_ns - kBatchNs);
      });
  if (!waited) return Fail("no rank has waited that long: " + report.text);
  CheckNamed(report, set, name);
}

// A rank named as missing had not submitted, and one named as silent could not
// answer.
void Checker::CheckNamed(const StallReport& report, int32_t set,
                         const std::string& name) {
  const std::string::size_type stop = report.text.find(". Ranks must");
  const std::string text = report.text.substr(0, stop);
  for (const bool missing : {true, false}) {
    const std::string word = missing ? "; missing " : "; no answer from ";
    const size_t start = text.find(word);
    if (start == std::string::npos) continue;
    const size_t end = text.find(';', start + 1);
    for (size_t at = text.find("rank ", start); at < end;
         at = text.find("rank ", at + 1)) {
      const int rank = std::atoi(text.c_str() + at + 5);
      if (text.compare(at + 5, 4, "that") == 0) break;
      if (!missing && h_.dead.empty() && h_.stopped.empty()) {
        return Fail("silent but alive: " + report.text);
      }
      if (!missing && CouldAnswer(rank, report)) {
        return Fail("silent though it could answer: " + report.text);
      }
      for (const Submission& s : h_.submissions) {
        if (missing && s.rank == rank &&
            Waits(s, set, name, report.time_ns - kQueryNs, report.time_ns)) {
          return Fail("named though it had submitted: " + report.text);
        }
      }
    }
  }
}

// All ranks between it and the top are alive, and it polls. A waiting rank that
// gets no answer names all ranks of which one may be dead.
bool Checker::CouldAnswer(int rank, const StallReport& report) const {
  if (!h_.executor_steps || Contains(report.text, "which should report")) {
    return false;
  }
  if (h_.abort_ns >= 0 && report.time_ns > h_.abort_ns) return false;
  for (; rank >= 0; rank = h_.parent.at(rank)) {
    if (!h_.Alive(rank)) return false;
  }
  return true;
}

// A dead rank is named, within a short time, if any rank can detect its death.
void Checker::CheckDeath() {
  for (const Submission& s : h_.submissions) {
    if (s.orphan || !h_.Alive(s.rank)) continue;
    if (!Contains(s.status.message(), " died")) continue;
    const int64_t from_ns = std::max(h_.last_death_ns, s.start_ns);
    if (s.end_ns - from_ns > 5 * kSecond) {
      return Fail("the death was seen late: " + Described(s));
    }
  }
}

// The last rank of a join: no rank joined long after it.
void Checker::CheckJoins() {
  for (const auto& [key, calls] : instances_) {
    const Submission* last = nullptr;
    int64_t latest_ns = 0;
    bool ok = true;
    for (const Submission* s : calls) {
      ok = ok && s->kind == OpKind::kJoin && s->status.ok();
      if (s->rank == s->value) last = s;
      latest_ns = std::max(latest_ns, s->start_ns);
    }
    if (!ok) continue;
    if (last == nullptr) return Fail("no member: " + Described(*calls[0]));
    if (h_.executor_steps && !h_.deferred_join &&
        last->start_ns < latest_ns - kSecond) {
      return Fail("not the last to join: " + Described(*last));
    }
  }
}

void Checker::CheckSetNumbers() {
  std::map<int32_t, Instance> added;
  for (const auto& [key, calls] : instances_) {
    for (const Submission* s : calls) {
      if (s->kind != OpKind::kAddSet || !s->status.ok()) continue;
      if (added.try_emplace(s->value, key).first->second != key) {
        return Fail("a set's number was used twice: " + Described(*s));
      }
    }
  }
}

}  // namespace

const char* NameOf(Scenario scenario) {
  switch (scenario) {
    case Scenario::kPlain:
      return "plain";
    case Scenario::kSets:
      return "overlapping sets";
    case Scenario::kMismatch:
      return "mismatch";
    case Scenario::kDuplicateOne:
      return "duplicate on one rank";
    case Scenario::kDuplicateAll:
      return "duplicate on all ranks";
    case Scenario::kRefusal:
      return "local_error";
    case Scenario::kJoin:
      return "join";
    case Scenario::kJoinSets:
      return "join of several sets";
    case Scenario::kDynamicSets:
      return "dynamic sets";
    case Scenario::kLeave:
      return "leave";
    case Scenario::kMissing:
      return "missing call";
    case Scenario::kDeath:
      return "death";
    case Scenario::kStopped:
      return "stopped rank";
    case Scenario::kLateRank:
      return "late rank";
  }
  return "";
}

std::string CheckHistory(const History& history) {
  return Checker(history).Run();
}

}  // namespace tf_hvd::protocol_test
