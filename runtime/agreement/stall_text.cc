#include "runtime/agreement/stall_text.h"

#include <algorithm>

#include "base/clock.h"
#include "base/types.h"
#include "runtime/contract/world.h"

namespace tf_hvd {
namespace {

constexpr size_t kMaxWaitsInText = 2;   // of one rank
constexpr size_t kMaxGroupsInText = 3;  // of ranks that wait for other things

std::string SetText(int32_t set) {
  return set == kWorldSet ? "world" : "process set " + std::to_string(set);
}

std::string MoreText(const RankList& ranks) {
  const size_t more = ranks.count - ranks.named.size();
  return more == 0 ? "" : " and " + std::to_string(more) + " more";
}

std::string NumbersText(const RankList& ranks) {
  std::string text = ranks.count == 1 ? "rank" : "ranks";
  for (size_t i = 0; i < ranks.named.size(); ++i) {
    text += (i > 0 ? ", " : " ") + std::to_string(ranks.named[i]);
  }
  return text + MoreText(ranks);
}

std::string ListText(const RankList& ranks,
                     const std::vector<std::string>& hosts) {
  std::string text;
  for (const int rank : ranks.named) {
    text += (text.empty() ? "" : ", ") + RankText(rank, hosts);
  }
  return text + MoreText(ranks);
}

// What the missing ranks do instead.
std::string InsteadText(const WaitGroup& group) {
  const bool one = group.ranks.count == 1;
  const std::string compiling = std::string(one ? "has" : "have") +
                                " begun to compile '" + group.compiling +
                                "' and made no call since";
  const std::string at = group.place.empty() ? "" : ", at " + group.place;
  if (group.waits_for.empty() && !group.compiling.empty()) {
    return compiling + at;
  }
  if (group.waits_for.empty()) {
    return (one ? "is" : "are") + std::string(" not in a collective") + at;
  }
  return (one ? "waits for " : "wait for ") + group.waits_for +
         (group.compiling.empty() ? "" : " and " + compiling) + at;
}

// The missing ranks, and what they wait for instead; groups ranks that wait for
// the same call.
std::string MissingText(const StallAnswer& answer,
                        const std::vector<std::string>& hosts) {
  std::string text = "; missing " + ListText(answer.missing, hosts);
  for (size_t i = 0; i < answer.waits.size() && i < kMaxGroupsInText; ++i) {
    const WaitGroup& group = answer.waits[i];
    text += "; " + NumbersText(group.ranks) + " " + InsteadText(group);
  }
  return text;
}

// Whether all ranks wait only for XLA.
bool AllCompile(const StallAnswer& answer) {
  return answer.silent.empty() && !answer.waits.empty() &&
         std::all_of(answer.waits.begin(), answer.waits.end(),
                     [](const WaitGroup& group) {
                       return !group.compiling.empty() &&
                              group.waits_for.empty();
                     });
}

std::string AdviceText(const StallAnswer& answer) {
  if (AllCompile(answer)) {
    return ". XLA compiles a step at its first call, and again for each new "
           "shape of its inputs (for a smaller last batch, use "
           "drop_remainder=True). "
           "Raise HOROVOD_STALL_SHUTDOWN_TIME_SECONDS if compiling takes "
           "longer";
  }
  if (answer.missing.empty() && !answer.silent.empty()) {
    return ". A rank that does not answer may have been stopped by a debugger, "
           "Ctrl-Z or a scheduler, or its machine may be unreachable";
  }
  const bool in_compiled = std::any_of(
      answer.waits.begin(), answer.waits.end(),
      [](const WaitGroup& group) { return group.waits_in_compiled; });
  const bool at_work = std::any_of(
      answer.waits.begin(), answer.waits.end(),
      [](const WaitGroup& group) { return group.waits_for.empty(); });
  return std::string(
             ". Ranks must make the same collective calls, with the same names "
             "and process sets: look for a branch that depends on the rank, "
             "fewer batches on one rank, a step that one rank repeats, or a "
             "Session.run that fetches the collective on some ranks only") +
         (in_compiled ? ". Each compiled step that waits in a collective holds "
                        "one of TensorFlow's inter-op threads: run fewer such "
                        "steps at a time, or raise the number of threads "
                        "(tf.config.threading.set_inter_op_parallelism_threads)"
                      : "") +
         (at_work ? ". If a rank needs longer, for example for an evaluation, "
                    "raise HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
                  : "");
}

}  // namespace

std::string Shown(const std::string& name) {
  return name == kJoinName ? "join()" : "'" + name + "'";
}

std::string Shown(const Key& key) {
  return Shown(key.second) + " (" + SetText(key.first) + ")";
}

std::string SecondsText(int64_t ns) {
  return std::to_string((ns + kSecond / 2) / kSecond) + " s";
}

// A call with the same name, in another process set, comes first.
std::string OtherWaitsText(const std::map<Key, int64_t>& waits,
                           const Key& missed) {
  std::vector<std::string> texts;
  for (const auto& [key, since_ns] : waits) {
    const bool same_name = key.second == missed.second;
    texts.insert(
        same_name ? texts.begin() : texts.end(),
        Shown(key) +
            (same_name ? ": the same name in another process set" : ""));
  }
  std::string text;
  for (size_t i = 0; i < texts.size() && i < kMaxWaitsInText; ++i) {
    text += (i > 0 ? ", " : "") + texts[i];
  }
  if (texts.size() > kMaxWaitsInText) {
    text += " and " + std::to_string(texts.size() - kMaxWaitsInText) + " more";
  }
  return text;
}

std::string StallText(const Key& key, int64_t age_ns, const StallAnswer& answer,
                      int64_t stuck_ns, const std::vector<std::string>& hosts) {
  std::string text = (AllCompile(answer) ? "slow compilation: " : "stall: ") +
                     Shown(key) + " waited " + SecondsText(age_ns);
  if (!answer.voted.empty()) {
    text += ": submitted by " + ListText(answer.voted, hosts);
  }
  if (!answer.missing.empty()) text += MissingText(answer, hosts);
  if (!answer.silent.empty()) {
    text += "; no answer from " + ListText(answer.silent, hosts) +
            " (stopped, or only reachable through a rank that is stopped)";
  }
  if (stuck_ns > 0) {
    text +=
        "; each rank waits for a call that another rank has not made, and no "
        "rank has made a call for " +
        SecondsText(stuck_ns);
  }
  return text + AdviceText(answer);
}

std::string UncompiledText(const Key& key, const RankList& compiled,
                           const WaitGroup& group,
                           const std::vector<std::string>& hosts) {
  return "mismatch in " + Shown(key) + ": " + ListText(compiled, hosts) +
         (compiled.count == 1 ? " calls" : " call") +
         " it from a step that XLA compiles; " + ListText(group.ranks, hosts) +
         (group.ranks.count == 1 ? " waits for " : " wait for ") +
         group.waits_for +
         " outside of such a step; jit_compile must be the same on all ranks";
}

std::string NoAnswerText(const std::vector<int>& above,
                         const std::vector<std::string>& hosts) {
  std::string text = "; no answer from ";
  for (size_t i = 0; i < above.size(); ++i) {
    text += (i > 0 ? " or " : "") + RankText(above[i], hosts);
  }
  return text +
         " (stopped, or its machine cannot be reached), which should report "
         "the missing ranks";
}

}  // namespace tf_hvd
