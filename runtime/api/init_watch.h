// InitWatch: what tells the user that init waits for other ranks, and ends the
// process when that takes too long. Nothing else can: whoever has called
// MPI_Init waits in it until all ranks have. Who is missing is not known before
// MPI connects the ranks; `tf_hvd run` knows it
// (tf_hvd/launch/job/job_watch.py).
#ifndef TF_HVD_RUNTIME_API_INIT_WATCH_H_
#define TF_HVD_RUNTIME_API_INIT_WATCH_H_

#include <cstdint>
#include <string>
#include <thread>

#include "base/config.h"
#include "base/latch.h"

namespace tf_hvd {

// "init() has waited 30 s for 3 other ranks of 4. ...". `others`: of them the
// job does not start without. Pure.
std::string DescribeWait(int others, int size, int64_t waited_s);

class InitWatch {
 public:
  // `others`: how many other ranks the job does not start without.
  InitWatch(const Config& config, const LaunchInfo& launch, int others);
  // Init has come back.
  ~InitWatch();

  InitWatch(const InitWatch&) = delete;
  InitWatch& operator=(const InitWatch&) = delete;

 private:
  void Watch();
  // Whether init comes back within so long since its start.
  bool IsOverAfter(int64_t limit_ns);
  std::string Text() const;

  const Config config_;
  const int others_;
  const int size_;
  const std::string who_;  // "rank 1 (host)"
  const int64_t start_ns_;
  Latch over_;  // init has come back
  std::thread thread_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_API_INIT_WATCH_H_
