// Texts for users about waiting requests. Pure.
#ifndef TF_HVD_RUNTIME_AGREEMENT_STALL_TEXT_H_
#define TF_HVD_RUNTIME_AGREEMENT_STALL_TEXT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/agreement/stall_answer.h"
#include "runtime/request/request.h"

namespace tf_hvd {

// "'g'"
std::string Shown(const std::string& name);
// "'g' (world)"
std::string Shown(const Key& key);

// "30 s"
std::string SecondsText(int64_t ns);

// The calls that a rank which has not submitted `missed` waits for instead.
// Empty: it is not in a collective.
std::string OtherWaitsText(const std::map<Key, int64_t>& waits,
                           const Key& missed);

// The ranks missing from a request that has waited for `age_ns`, and what they
// wait for instead. `stuck_ns`: how long all ranks have waited for each other;
// 0: they do not.
std::string StallText(const Key& key, int64_t age_ns, const StallAnswer& answer,
                      int64_t stuck_ns, const std::vector<std::string>& hosts);

// Some ranks' steps are compiled by XLA, but the steps of `group` are not.
std::string UncompiledText(const Key& key, const RankList& compiled,
                           const WaitGroup& group,
                           const std::vector<std::string>& hosts);

// Names the ranks that should have passed the question on, or sent the query.
std::string NoAnswerText(const std::vector<int>& above,
                         const std::vector<std::string>& hosts);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_AGREEMENT_STALL_TEXT_H_
