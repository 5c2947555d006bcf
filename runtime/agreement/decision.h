// The decision on a name, pure: how votes merge and what their request results
// in (agreement.md, section 3). No state, no clock, no messages.
#ifndef TF_HVD_RUNTIME_AGREEMENT_DECISION_H_
#define TF_HVD_RUNTIME_AGREEMENT_DECISION_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/request/request.h"

namespace tf_hvd {

// One rank's request under a name.
struct Submission {
  int32_t rank = 0;
  SharedRequest request;
};

// Why one rank could not submit its request.
struct LocalError {
  int32_t rank = 0;
  std::string text;
};

// The step of one rank's caller that its call belongs to.
struct RankStep {
  int32_t rank = 0;
  int64_t step = -1;  // -1: the caller gave none
};

// The variables that one rank's call reduces the gradients of.
struct RankSources {
  int32_t rank = 0;
  int64_t digest = 0;  // SourceList::digest
};

// The content behind a digest of sources. A rank sends it once, with the first
// vote that has the digest, and the coordinator keeps it for error texts.
struct ToldSources {
  int64_t digest = 0;
  std::string bytes;  // SourceList::bytes
};

// "All ranks of the set in my subtree have submitted this", merged.
struct Vote {
  Submission first;                 // of the lowest rank
  std::optional<Submission> other;  // the lowest rank with a different request
  std::optional<LocalError> local_error;  // of the lowest rank that has one
  // Not part of the request, which stays the same from step to step so that
  // slots can stand for it.
  int64_t step = -1;                 // of the lowest rank
  std::optional<RankStep> off_step;  // the lowest rank at a different step
  // The lowest rank that knows its sources, and the lowest rank with different
  // ones. A rank may not know its sources, for example in a loaded graph.
  std::optional<RankSources> sources;
  std::optional<RankSources> off_sources;
  std::vector<ToldSources> told;  // each digest once
  bool joined = false;            // some ranks take part with zeros
  int32_t last_rank = 0;          // the rank that voted last
};

// Associative and commutative except for `last_rank`, which is the later
// vote's.
Vote Merge(const Vote& earlier, const Vote& later);

// Sources that ranks have sent, by process set and digest. If there are very
// many, the oldest are dropped: an error then has no names, and a rank sends
// its sources again.
class SourceNames {
 public:
  // False if they are already known.
  bool Add(int32_t set, int64_t digest, std::string bytes);
  // Empty if they are not known.
  std::string_view Find(int32_t set, int64_t digest) const;

 private:
  using Which = std::pair<int32_t, int64_t>;

  std::map<Which, std::string> names_;
  std::deque<Which> in_turn_;  // the oldest first
};

// Empty: the request runs. Otherwise the text of the error that it ends with on
// all ranks. `set`: the process set of the call.
std::string Decide(std::string_view name, const Vote& vote, int32_t set,
                   const SourceNames& names);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_AGREEMENT_DECISION_H_
