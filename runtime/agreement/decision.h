// The decision on a name, pure: how votes merge and what becomes of them
// (agreement.md, section 3). No state, no clock, no messages.
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

// What one rank submitted under a name.
struct Submission {
  int32_t rank = 0;
  SharedRequest request;
};

// Why one rank could not submit what it was asked for.
struct LocalError {
  int32_t rank = 0;
  std::string text;
};

// Which step of its caller one rank's call belongs to.
struct RankStep {
  int32_t rank = 0;
  int64_t step = -1;  // -1: the caller gave none
};

// What one rank's call reduces the gradients of.
struct RankSources {
  int32_t rank = 0;
  int64_t digest = 0;  // SourceList::digest
};

// What a digest of sources stands for. A rank tells it once, with the first
// vote that has the digest, and the coordinator remembers it for its errors.
struct ToldSources {
  int64_t digest = 0;
  std::string bytes;  // SourceList::bytes
};

// "Everybody of the set in my subtree has submitted this", merged.
struct Vote {
  Submission first;                 // of the lowest rank
  std::optional<Submission> other;  // the lowest rank whose request differs
  std::optional<LocalError> local_error;  // of the lowest rank that has one
  // Not in the request, which stays the same from step to step: slots stand for
  // requests.
  int64_t step = -1;                 // of the lowest rank
  std::optional<RankStep> off_step;  // the lowest rank whose step differs
  // The lowest rank that knows its sources, and the lowest whose differ from
  // those. A rank may not know them, as of a graph that it has loaded.
  std::optional<RankSources> sources;
  std::optional<RankSources> off_sources;
  std::vector<ToldSources> told;  // each digest once
  bool joined = false;            // some ranks take part with zeros
  int32_t last_rank = 0;          // whose vote came last
};

// Associative and commutative but for `last_rank`, which is the later vote's.
Vote Merge(const Vote& earlier, const Vote& later);

// Sources that ranks have told, by process set and digest. The oldest are
// forgotten when there are very many: then an error has no names, and a rank
// tells them once more.
class SourceNames {
 public:
  // False if they are known.
  bool Add(int32_t set, int64_t digest, std::string bytes);
  // Empty if they are not known.
  std::string_view Find(int32_t set, int64_t digest) const;

 private:
  using Which = std::pair<int32_t, int64_t>;

  std::map<Which, std::string> names_;
  std::deque<Which> in_turn_;  // the oldest first
};

// Empty: the request runs. Else the text of the error that it ends with on all
// ranks. `set`: whose call it is.
std::string Decide(std::string_view name, const Vote& vote, int32_t set,
                   const SourceNames& names);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_AGREEMENT_DECISION_H_
