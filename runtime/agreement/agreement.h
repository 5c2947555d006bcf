// Agreement, the pure part: how votes merge and what becomes of them
// (agreement.md, section 3). No state, no clock, no messages.
#ifndef TF_HVD_RUNTIME_AGREEMENT_AGREEMENT_H_
#define TF_HVD_RUNTIME_AGREEMENT_AGREEMENT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

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

// "Everybody of the set in my subtree has submitted this", merged.
struct Vote {
  Submission first;                 // of the lowest rank
  std::optional<Submission> other;  // the lowest rank whose request differs
  std::optional<LocalError> local_error;  // of the lowest rank that has one
  // Not in the request, which stays the same from step to step: slots stand for
  // requests.
  int64_t step = -1;  // of the lowest rank
  // The lowest rank whose step differs from it.
  std::optional<RankStep> off_step;
  bool joined = false;    // some ranks take part with zeros
  int32_t last_rank = 0;  // whose vote came last
};

// Associative and commutative but for `last_rank`, which is the later vote's.
Vote Merge(const Vote& earlier, const Vote& later);

// Empty: the request runs. Else the text of the error that it ends with on all
// ranks.
std::string Decide(std::string_view name, const Vote& vote);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_AGREEMENT_AGREEMENT_H_
