// StallAnswer: what the ranks of a subtree answer to a stall query
// (agreement.md, section 8), and how answers merge on their way up. However
// many ranks have answered, an answer holds no more than the report shows of
// them. Pure.
#ifndef TF_HVD_RUNTIME_AGREEMENT_STALL_ANSWER_H_
#define TF_HVD_RUNTIME_AGREEMENT_STALL_ANSWER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tf_hvd {

// Some ranks: how many they are, and the lowest of them.
struct RankList {
  static constexpr size_t kMaxNamed = 16;

  RankList() = default;
  // `ranks` ascend.
  explicit RankList(const std::vector<int>& ranks);

  bool empty() const { return count == 0; }

  std::vector<int32_t> named;  // ascending, at most kMaxNamed
  uint32_t count = 0;
};

// Of lists that have no rank in common.
RankList Merge(const RankList& a, const RankList& b);

// Ranks that are missing, and what all of them wait for instead.
struct WaitGroup {
  std::string waits_for;  // for people; empty: no collective
  RankList ranks;
  // Whether they have made calls of steps that XLA has compiled.
  bool ever_compiled = false;
  // Whether they wait for such a call.
  bool waits_in_compiled = false;
  // The step that they have begun to compile, without a call since; empty:
  // none that is known.
  std::string compiling;
};

struct StallAnswer {
  static constexpr size_t kMaxGroups = 16;

  bool agreed = false;  // the request has been put in order meanwhile
  uint32_t age_ms = 0;  // for how long one of `voted` has waited, at most
  RankList voted;
  RankList missing;
  RankList silent;  // have not answered in time
  // Of the missing, by their lowest rank. Those with the lowest, if there are
  // too many.
  std::vector<WaitGroup> waits;
};

// Of answers of different ranks. Associative and commutative but for `waits`
// where there are more than kMaxGroups of them.
StallAnswer Merge(const StallAnswer& a, const StallAnswer& b);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_AGREEMENT_STALL_ANSWER_H_
