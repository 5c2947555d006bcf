// MainThread: the program line that this process's main thread is executing.
// The request is a signal. Its handler, installed by the code for the program's
// language, writes the frames into a file in memory, innermost first, in the
// format of Python's faulthandler:
//
//   File "/data/train.py", line 12 in evaluate
//
// No thread waits for the answer. It normally arrives within a moment. It takes
// longer if the main thread gets no core or stays in the kernel.
#ifndef TF_HVD_BASE_MAIN_THREAD_H_
#define TF_HVD_BASE_MAIN_THREAD_H_

#include <signal.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/open_file.h"

namespace tf_hvd {

// The innermost of these frames that belongs to the program, as "train.py, line
// 12, in evaluate". Skips files with one of `others` in the name and names in
// brackets ("<frozen runpy>"). Without such a frame: the innermost of all;
// empty without frames. `folder` is removed from the start of a file's name.
std::string PlaceIn(std::string_view frames,
                    const std::vector<std::string>& others,
                    const std::string& folder);

// One thread at a time.
class MainThread {
 public:
  // The signal's handler must be installed already.
  MainThread(int signal, int file, std::vector<std::string> others);

  // Requests the current place. False if no answer can arrive: the program has
  // closed the file, or replaced the signal's handler.
  bool Ask();

  // The answer to the last request; empty if none has arrived.
  std::string Place() const;

 private:
  bool IsOurs() const;
  bool Answered() const;

  const int signal_;
  const OpenFile file_;
  const std::vector<std::string> others_;
  struct sigaction handler_ = {};
  int64_t asked_ns_ = 0;  // 0: never
};

}  // namespace tf_hvd

#endif  // TF_HVD_BASE_MAIN_THREAD_H_
