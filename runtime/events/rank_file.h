// Files that each rank has one of.
#ifndef TF_HVD_RUNTIME_EVENTS_RANK_FILE_H_
#define TF_HVD_RUNTIME_EVENTS_RANK_FILE_H_

#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>

namespace tf_hvd {

// "a/trace.json" and ".before": "a/trace.before.json".
std::string BeforeSuffix(const std::string& path, const std::string& more);

// `path` for rank 0; for rank 3, trace.json becomes trace.rank-3.json.
std::string RankFile(const std::string& path, int rank);

// Writes all bytes, however long that takes. 0, or an errno.
int WriteAll(int file, std::string_view bytes);

// Replaces the file `path`, relative to `folder`, a descriptor or AT_FDCWD. The
// new file is created under a random name and renamed. So no link made by
// another user is followed, and a reader finds the old file or the complete new
// one. Replaces only files, not links, pipes or devices. `fill` is called with
// the descriptor and returns 0 or an errno. Returns the descriptor, or -1 and
// the reason.
int PutFile(int folder, const std::string& path, mode_t mode,
            const std::function<int(int file)>& fill, std::string* why);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EVENTS_RANK_FILE_H_
