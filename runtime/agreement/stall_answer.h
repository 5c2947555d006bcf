// StallAnswer: the answer of the ranks of a subtree to a stall query
// (agreement.md, section 8), and the merging of answers on their way up. An
// answer's size is limited to what the report shows, however many ranks have
// answered. Pure.
#ifndef TF_HVD_RUNTIME_AGREEMENT_STALL_ANSWER_H_
#define TF_HVD_RUNTIME_AGREEMENT_STALL_ANSWER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tf_hvd {

// A list of ranks: their number, and the lowest of them.
struct RankList {
  static constexpr size_t kMaxNamed = 16;

  RankList() = default;
  // `ranks` ascend.
  explicit RankList(const std::vector<int>& ranks);

  bool empty() const { return count == 0; }

  std::vector<int32_t> named;  // ascending, at most kMaxNamed
  uint32_t count = 0;
};

// Merges lists that have no rank in common.
RankList Merge(const RankList& a, const RankList& b);

// Missing ranks, and what all of them wait for instead.
struct WaitGroup {
  std::string waits_for;  // for messages; empty: not in a collective
  RankList ranks;
  // Whether they have called collectives in steps that XLA has compiled.
  bool ever_compiled = false;
  // Whether they wait for such a call.
  bool waits_in_compiled = false;
  // The step that they have started to compile, without a call since; empty:
  // none known.
  std::string compiling;
  // The line that their programs are at; empty: unknown.
  std::string place;
};

struct StallAnswer {
  static constexpr size_t kMaxGroups = 16;
  static constexpr uint32_t kNoRank = 0xffffffff;

  bool agreed = false;  // the request has been ordered meanwhile
  uint32_t age_ms = 0;  // the longest wait of a rank in `voted`
  // How long none of the ranks has made progress, each of which waits for a
  // call of this set's members; 0 if one of them does not wait.
  uint32_t stuck_ms = kNoRank;
  RankList voted;
  RankList missing;
  RankList silent;  // ranks that have not answered in time
  // Groups of missing ranks, sorted by their lowest rank. If there are too
  // many, those with the lowest ranks.
  std::vector<WaitGroup> waits;
};

// Merges answers of different ranks. Associative and commutative except for
// `waits` if there are more than kMaxGroups of them.
StallAnswer Merge(const StallAnswer& a, const StallAnswer& b);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_AGREEMENT_STALL_ANSWER_H_
