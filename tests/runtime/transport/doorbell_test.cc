#include "runtime/contract/doorbell.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <new>
#include <thread>

#include "tests/runtime/rank_threads.h"

namespace tf_hvd {
namespace {

constexpr int64_t kForEver = int64_t{3600} * 1'000'000'000;

TEST(Doorbell, WaitReturnsImmediatelyIfRungBefore) {
  RunRanks(1, [](int) {
    Doorbell bell;
    bell.Ring();
    bell.Ring();
    bell.Wait(kForEver);
  });
}

TEST(Doorbell, WaitConsumesTheRing) {
  Doorbell bell;
  bell.Ring();
  bell.Wait(0);
  RunRanks(2, [&](int rank) {
    if (rank == 0) {
      bell.Wait(kForEver);  // only the second ring ends this
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      bell.Ring();
    }
  });
}

TEST(Doorbell, WaitEndsAtTheLimit) {
  RunRanks(1, [](int) {
    Doorbell bell;
    bell.Wait(2'000'000);
    bell.Wait(0);
    bell.Wait(-1);
  });
}

TEST(Doorbell, RingIfAsleepWakesOnlySleepers) {
  RunRanks(1, [](int) {
    Doorbell bell;
    bell.RingIfAsleep();
    bell.SetAsleep(true);
    bell.SetAsleep(false);
    bell.RingIfAsleep();
    const auto start = std::chrono::steady_clock::now();
    bell.Wait(1'000'000);  // not rung: the limit ends it
    EXPECT_GE(std::chrono::steady_clock::now() - start,
              std::chrono::milliseconds(1));
    bell.SetAsleep(true);
    bell.RingIfAsleep();
    bell.Wait(kForEver);
    bell.RingIfAsleep();  // the first call has cleared the flag
    bell.Wait(1000);
  });
}

// The protocol of agreement.md, section 7: a message is written, then the bell
// is rung if the receiver sleeps. The receiver announces that it sleeps and
// checks once more. A lost wake-up hangs.
TEST(Doorbell, NoWakeUpIsLost) {
  constexpr int kRounds = 20000;
  Doorbell bells[2];
  std::atomic<int> messages[2] = {{0}, {0}};
  RunRanks(2, [&](int rank) {
    for (int round = 1; round <= kRounds; ++round) {
      messages[1 - rank] = round;
      bells[1 - rank].RingIfAsleep();
      while (messages[rank] < round) {
        bells[rank].SetAsleep(true);
        if (messages[rank] < round) bells[rank].Wait(kForEver);
        bells[rank].SetAsleep(false);
      }
    }
  });
}

TEST(Doorbell, WorksBetweenProcesses) {
  void* const memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* const bell = new (memory) Doorbell;
  bell->SetAsleep(true);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    usleep(5000);
    bell->RingIfAsleep();
    _exit(0);
  }
  RunRanks(1, [&](int) { bell->Wait(kForEver); });
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  munmap(memory, 4096);
}

}  // namespace
}  // namespace tf_hvd
