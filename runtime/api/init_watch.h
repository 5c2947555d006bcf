// InitWatch: warns the user that init waits for other ranks, and ends the
// process after the limit. Nothing else can: MPI_Init returns only after all
// ranks have called it. Before MPI connects the ranks, the missing ones are
// unknown here; `tf_hvd run` reports them (tf_hvd/launch/job/job_watch.py).
#ifndef TF_HVD_RUNTIME_API_INIT_WATCH_H_
#define TF_HVD_RUNTIME_API_INIT_WATCH_H_

#include <cstdint>
#include <string>
#include <thread>

#include "base/config.h"
#include "base/latch.h"

namespace tf_hvd {

// "init() has waited 30 s for 3 other ranks of 4. ...". `others`: number of
// other ranks that the job needs to start. Pure.
std::string DescribeWait(int others, int size, int64_t waited_s);

class InitWatch {
 public:
  // `others`: number of other ranks that the job needs to start.
  InitWatch(const Config& config, const LaunchInfo& launch, int others);
  // Init has returned.
  ~InitWatch();

  InitWatch(const InitWatch&) = delete;
  InitWatch& operator=(const InitWatch&) = delete;

 private:
  void Watch();
  // Whether init returns within this time after its start.
  bool IsOverAfter(int64_t limit_ns);
  std::string Text() const;

  const Config config_;
  const int others_;
  const int size_;
  const std::string who_;  // "rank 1 (host)"
  const int64_t start_ns_;
  Latch over_;  // init has returned
  std::thread thread_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_API_INIT_WATCH_H_
