// Files of which each rank has one.
#ifndef TF_HVD_RUNTIME_EVENTS_RANK_FILE_H_
#define TF_HVD_RUNTIME_EVENTS_RANK_FILE_H_

#include <string>
#include <string_view>

namespace tf_hvd {

// "a/trace.json" and ".before": "a/trace.before.json".
std::string BeforeSuffix(const std::string& path, const std::string& more);

// Rank 0's is `path`; that of rank 3 of trace.json is trace.rank-3.json.
std::string RankFile(const std::string& path, int rank);

// Writes all of it, however long that takes. 0, or an errno.
int WriteAll(int file, std::string_view bytes);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EVENTS_RANK_FILE_H_
