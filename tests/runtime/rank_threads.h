// Ranks as threads: runs one function per rank concurrently. A hanging test
// reports itself and ends instead of waiting indefinitely.
#ifndef TF_HVD_TESTS_RUNTIME_RANK_THREADS_H_
#define TF_HVD_TESTS_RUNTIME_RANK_THREADS_H_

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace tf_hvd {

// Ends the process with the name of the running test and its open waits, unless
// destroyed in time.
class Watchdog {
 public:
  explicit Watchdog(std::function<std::string()> describe,
                    std::chrono::seconds limit = std::chrono::seconds(250))
      : thread_([this, describe = std::move(describe), limit] {
          std::unique_lock<std::mutex> lock(mutex_);
          if (stopped_.wait_for(lock, limit, [this] { return stop_; })) return;
          const ::testing::TestInfo* test =
              ::testing::UnitTest::GetInstance()->current_test_info();
          std::fprintf(stderr, "watchdog: %s.%s hangs: %s\n",
                       test ? test->test_suite_name() : "?",
                       test ? test->name() : "?", describe().c_str());
          std::abort();
        }) {}

  ~Watchdog() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    stopped_.notify_all();
    thread_.join();
  }

  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  std::thread thread_;  // last: starts when the other members exist
};

// Calls fn(0) ... fn(ranks - 1), each on a separate thread, and returns when
// all have returned. gtest's EXPECT and ASSERT work in `fn`; an exception
// becomes a failure that names the rank.
inline void RunRanks(int ranks, const std::function<void(int rank)>& fn) {
  std::mutex mutex;
  std::vector<bool> finished(static_cast<size_t>(ranks), false);
  Watchdog watchdog([&] {
    std::lock_guard<std::mutex> lock(mutex);
    std::string text = "ranks that have not finished:";
    for (int rank = 0; rank < ranks; ++rank) {
      if (!finished[static_cast<size_t>(rank)]) {
        text += ' ' + std::to_string(rank);
      }
    }
    return text;
  });
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        fn(rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << " threw: " << error.what();
      }
      std::lock_guard<std::mutex> lock(mutex);
      finished[static_cast<size_t>(rank)] = true;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_RUNTIME_RANK_THREADS_H_
