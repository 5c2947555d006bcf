// The choice of stores on simulated machines: the cost of a byte for each kind
// of store, while the cores are near and while they are far.
#include "runtime/transport/shm/store_choice.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace tf_hvd {
namespace {

constexpr StoreChoice::Alike kLarge = 20;
constexpr StoreChoice::Alike kSmall = 16;

// Nanoseconds per byte, for 1 MiB: the machine of the issue, on which a core's
// neighbour alternates between two states; and one that is always near.
struct Machine {
  double ordinary;
  double streaming;
};
constexpr Machine kNear = {0.086, 0.134};
constexpr Machine kFar = {0.553, 0.085};
constexpr Machine kAlike = {0.100, 0.098};

class Job {
 public:
  explicit Job(SlotStores rule = SlotStores::kMeasured, unsigned seed = 1)
      : choice_(rule), random_(seed) {}

  // Writes of that size class; costs arrive four writes later, when the readers
  // are done. Returns the number of streamed writes.
  int Write(const Machine& machine, int writes,
            StoreChoice::Alike alike = kLarge) {
    int streamed = 0;
    for (int i = 0; i < writes; ++i) {
      const Stores stores = choice_.Next(alike);
      streamed += stores == Stores::kStreaming ? 1 : 0;
      explored_ += stores != choice_.current() ? 1 : 0;
      ++writes_;
      const double cost =
          stores == Stores::kStreaming ? machine.streaming : machine.ordinary;
      // Short writes cost less per byte: the classes must not be mixed.
      const double by_size = alike == kSmall ? 0.25 : 1.0;
      late_[writes_] = {alike, stores, cost * by_size * Noise()};
      const auto due = late_.find(writes_ - 4);
      if (due == late_.end()) continue;
      choice_.Add(due->second.alike, due->second.stores, due->second.cost);
      late_.erase(due);
    }
    return streamed;
  }
  int WritesUntil(const Machine& machine, Stores stores, int most) {
    for (int i = 0; i < most; ++i) {
      if (choice_.current() == stores) return i;
      Write(machine, 1);
    }
    return most;
  }

  StoreChoice& choice() { return choice_; }
  double explored_share() const {
    return static_cast<double>(explored_) / static_cast<double>(writes_);
  }

 private:
  struct Late {
    StoreChoice::Alike alike;
    Stores stores;
    double cost;
  };

  // A fifth more or less; sometimes the core is lost for a while.
  double Noise() {
    if (random_() % 50 == 0) return 20.0;
    return 0.8 + 0.4 * static_cast<double>(random_() % 1000) / 1000.0;
  }

  StoreChoice choice_;
  std::mt19937 random_;
  std::map<int, Late> late_;
  int writes_ = 0;
  int explored_ = 0;
};

TEST(StoreChoice, NearCoresKeepOrdinaryStores) {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    Job job(SlotStores::kMeasured, seed);
    job.Write(kNear, 1000);
    const int streamed = job.Write(kNear, 19900);
    EXPECT_EQ(job.choice().current(), Stores::kOrdinary) << seed;
    EXPECT_LE(streamed, 101) << seed << ": one in 199 explores, and no more";
    EXPECT_LE(job.explored_share(), 1.0 / 199 + 1e-3);
  }
}

TEST(StoreChoice, FarCoresGetStreamingStoresAndKeepThem) {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    Job job(SlotStores::kMeasured, seed);
    job.Write(kFar, 1000);
    const int streamed = job.Write(kFar, 19900);
    EXPECT_EQ(job.choice().current(), Stores::kStreaming) << seed;
    EXPECT_GE(streamed, 19900 - 101) << seed;
    EXPECT_LE(job.explored_share(), 1.0 / 199 + 1e-3);
  }
}

// 1,000 pieces of 1 MiB take a quarter of a second.
TEST(StoreChoice, FollowsAChangeOfState) {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    Job job(SlotStores::kMeasured, seed);
    job.Write(kNear, 500 + static_cast<int>(seed));
    for (int turn = 0; turn < 5; ++turn) {
      EXPECT_LT(job.WritesUntil(kFar, Stores::kStreaming, 1000), 800)
          << seed << ", turn " << turn;
      job.Write(kFar, 3000);
      EXPECT_LT(job.WritesUntil(kNear, Stores::kOrdinary, 1000), 800)
          << seed << ", turn " << turn;
      job.Write(kNear, 3000);
    }
  }
}

TEST(StoreChoice, WritesOfDifferentSizesAreNotCompared) {
  Job job;
  // Short ones cost a quarter per byte: compared together, each exploring short
  // write would look like a gain.
  for (int i = 0; i < 5000; ++i) {
    job.Write(kNear, 1, kLarge);
    job.Write(kNear, 1, kSmall);
  }
  EXPECT_EQ(job.choice().current(), Stores::kOrdinary);
  for (int i = 0; i < 500; ++i) {
    job.Write(kFar, 1, kLarge);
    job.Write(kFar, 1, kSmall);
  }
  EXPECT_EQ(job.choice().current(), Stores::kStreaming);
}

TEST(StoreChoice, NothingIsLostIfBothCostTheSame) {
  Job job;
  job.Write(kAlike, 20000);
  EXPECT_LE(job.explored_share(), 1.0 / 199 + 1e-3);
}

// If one kind is slightly more expensive, little is lost, whatever the noise.
TEST(StoreChoice, NoiseRarelyMisleads) {
  int streamed = 0;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    Job job(SlotStores::kMeasured, seed);
    job.Write({0.100, 0.115}, 1000);
    streamed += job.Write({0.100, 0.115}, 10000);
  }
  EXPECT_LT(streamed, 20 * 10000 / 20) << "5 %";
}

// After an apparent gain the program continues with something else.
TEST(StoreChoice, TrialEnds) {
  StoreChoice choice(SlotStores::kMeasured);
  const auto write = [&choice](StoreChoice::Alike alike, double streaming) {
    const Stores stores = choice.Next(alike);
    choice.Add(alike, stores, stores == Stores::kStreaming ? streaming : 1.0);
    return stores;
  };
  for (int i = 0; i < 100 && choice.current() == Stores::kOrdinary; ++i) {
    write(kLarge, 0.5);
  }
  ASSERT_EQ(choice.current(), Stores::kStreaming);
  int streamed = 0;
  for (int i = 0; i < 10000; ++i) {
    streamed += write(kSmall, 1.5) == Stores::kStreaming ? 1 : 0;
  }
  EXPECT_LT(streamed, 600);
  EXPECT_EQ(choice.current(), Stores::kOrdinary);
}

TEST(StoreChoice, ForcedChoiceIsKept) {
  EXPECT_EQ(Job(SlotStores::kOrdinary).Write(kFar, 2000), 0);
  EXPECT_EQ(Job(SlotStores::kStreaming).Write(kNear, 2000), 2000);
  EXPECT_EQ(Job(SlotStores::kAlternating).Write(kNear, 2000), 1000);
}

}  // namespace
}  // namespace tf_hvd
