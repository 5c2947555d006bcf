// Files of which each rank has one.
#ifndef TF_HVD_RUNTIME_EVENTS_RANK_FILE_H_
#define TF_HVD_RUNTIME_EVENTS_RANK_FILE_H_

#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>

namespace tf_hvd {

// "a/trace.json" and ".before": "a/trace.before.json".
std::string BeforeSuffix(const std::string& path, const std::string& more);

// Rank 0's is `path`; that of rank 3 of trace.json is trace.rank-3.json.
std::string RankFile(const std::string& path, int rank);

// Writes all of it, however long that takes. 0, or an errno.
int WriteAll(int file, std::string_view bytes);

// Puts a new file where `path` is, which is below `folder`, a descriptor or
// AT_FDCWD. It is made under a name that nobody can guess: no link that
// somebody else has put there is followed, and a reader finds the old file or
// all of the new one. Only a file is replaced: no link, pipe or device. `fill`
// gets the descriptor and returns 0 or an errno. Returns the descriptor, or -1
// and why.
int PutFile(int folder, const std::string& path, mode_t mode,
            const std::function<int(int file)>& fill, std::string* why);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EVENTS_RANK_FILE_H_
