// The machine's limits, for `tf_hvd bench`: a minimal barrier and allreduce
// between the processes on one machine. It also measures the latency between
// cores, which `tf_hvd doctor` shows too. The only error is a timeout, and the
// only types are float and double, so that any cost beyond this is a runtime's
// overhead.
//
// The allreduce: the ranks process the buffer in pieces that stay in the cache.
// Each rank owns one part of each piece. It copies the other parts into its
// area and adds the other ranks' copies to its own part, in the order of ranks.
// It then leaves the sum in its area and copies the other ranks' sums.
//
// Every rank must call the functions of a segment in the same order, from one
// thread at a time.
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>

namespace {

constexpr int kAreas =
    2;  // a rank may begin a piece while another rank finishes the last one
constexpr int64_t kLine = 64;
constexpr int64_t kSpins = 2000;
constexpr std::chrono::seconds kPatience{60};

struct alignas(kLine) Counter {
  std::atomic<int64_t> arrivals;
};

// The shared segment, initially zero: a counter for each rank, two counters for
// rank 0 and each rank, then each rank's areas.
struct Segment {
  char* base;
  int rank;
  int ranks;
  int64_t piece_bytes;

  std::atomic<int64_t>& arrivals(int of) const {
    return (reinterpret_cast<Counter*>(base) + of)->arrivals;
  }
  // The counter of rank `of`, among the two for rank 0 and rank `other`.
  std::atomic<int64_t>& pings(int other, int of) const {
    const int index = ranks + 2 * other + (of == 0 ? 0 : 1);
    return (reinterpret_cast<Counter*>(base) + index)->arrivals;
  }
  char* area(int of, int64_t index) const {
    return base + 3 * ranks * kLine + (of * kAreas + index) * piece_bytes;
  }
};

// The microseconds of a round in which two cores signal each other, so that two
// cache lines travel in parallel. The result is the median of several series of
// rounds, or -1 if the other rank does not arrive within the limit.
double Latency(std::atomic<int64_t>* mine, const std::atomic<int64_t>& theirs) {
  constexpr int64_t kRounds = 200;
  std::array<double, 9> medians{};
  int64_t round = mine->load(std::memory_order_relaxed);
  for (double& microseconds : medians) {
    auto begin = std::chrono::steady_clock::now();
    for (int64_t i = 0; i <= kRounds; ++i) {
      // The first round waits for the other rank.
      if (i == 1) begin = std::chrono::steady_clock::now();
      mine->store(++round, std::memory_order_release);
      for (int64_t spin = 1; theirs.load(std::memory_order_acquire) < round;
           ++spin) {
        __builtin_ia32_pause();
        if (spin % kSpins != 0) continue;
        if (std::chrono::steady_clock::now() - begin > kPatience) return -1;
        sched_yield();
      }
    }
    const std::chrono::duration<double, std::micro> took =
        std::chrono::steady_clock::now() - begin;
    microseconds = took.count() / static_cast<double>(kRounds);
  }
  std::sort(medians.begin(), medians.end());
  return medians[medians.size() / 2];
}

bool BindTo(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  return sched_setaffinity(0, sizeof(cores), &cores) == 0;
}

// Returns false if another rank does not arrive within the limit.
bool Barrier(const Segment& segment) {
  std::atomic<int64_t>& mine = segment.arrivals(segment.rank);
  const int64_t now = mine.load(std::memory_order_relaxed) + 1;
  mine.store(now, std::memory_order_release);
  for (int other = 0; other < segment.ranks; ++other) {
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t spin = 1;
         segment.arrivals(other).load(std::memory_order_acquire) < now;
         ++spin) {
      if (spin % kSpins != 0) {
        __builtin_ia32_pause();
      } else if (std::chrono::steady_clock::now() - begin > kPatience) {
        return false;
      } else {
        sched_yield();
      }
    }
  }
  return true;
}

// The range of a piece's values that a rank owns.
struct Part {
  int64_t begin;
  int64_t count;
};

Part PartOf(int rank, int ranks, int64_t count) {
  const int64_t begin = count * rank / ranks;
  return {begin, count * (rank + 1) / ranks - begin};
}

#define TF_HVD_VECTOR \
  __attribute__((target_clones("avx512f", "avx2", "default")))

TF_HVD_VECTOR void Add(const float* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}

TF_HVD_VECTOR void Add(const double* from, double* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}

// to = a + b: a single pass for two ranks.
TF_HVD_VECTOR void Sum(const float* a, const float* b, float* to,
                       int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = a[i] + b[i];
}

TF_HVD_VECTOR void Sum(const double* a, const double* b, double* to,
                       int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = a[i] + b[i];
}

// The sum of a rank's own part, in the order of ranks.
template <typename T>
void SumOwn(const Segment& segment, int64_t index, const T* own, Part part,
            T* sum) {
  const auto values = [&](int rank) {
    return rank == segment.rank
               ? own
               : reinterpret_cast<T*>(segment.area(rank, index)) + part.begin;
  };
  if (segment.ranks == 1) {
    std::memcpy(sum, own, part.count * sizeof(T));
    return;
  }
  Sum(values(0), values(1), sum, part.count);
  for (int rank = 2; rank < segment.ranks; ++rank)
    Add(values(rank), sum, part.count);
}

template <typename T>
bool Allreduce(const Segment& segment, const T* input, T* output,
               int64_t count) {
  const int64_t most = segment.piece_bytes / static_cast<int64_t>(sizeof(T));
  for (int64_t begin = 0; begin < count; begin += most) {
    // Uses the other area than the previous piece, which may belong to another
    // call.
    const int64_t barriers =
        segment.arrivals(segment.rank).load(std::memory_order_relaxed);
    const int64_t index = barriers / 2 % kAreas;
    const int64_t length = std::min(most, count - begin);
    T* mine = reinterpret_cast<T*>(segment.area(segment.rank, index));
    const Part own = PartOf(segment.rank, segment.ranks, length);
    const T* from = input + begin;
    std::memcpy(mine, from, own.begin * sizeof(T));
    const int64_t behind = own.begin + own.count;
    std::memcpy(mine + behind, from + behind, (length - behind) * sizeof(T));
    if (!Barrier(segment)) return false;
    SumOwn(segment, index, from + own.begin, own, mine + own.begin);
    if (!Barrier(segment)) return false;
    for (int rank = 0; rank < segment.ranks; ++rank) {
      const Part part = PartOf(rank, segment.ranks, length);
      const T* sum =
          reinterpret_cast<const T*>(segment.area(rank, index)) + part.begin;
      std::memcpy(output + begin + part.begin, sum, part.count * sizeof(T));
    }
  }
  return true;
}

}  // namespace

extern "C" {

#define TF_HVD_EXPORT __attribute__((visibility("default")))

// The number of bytes that the ranks must share.
TF_HVD_EXPORT int64_t tf_hvd_limits_segment_bytes(int ranks,
                                                  int64_t piece_bytes) {
  return ranks * (3 * kLine + kAreas * piece_bytes);
}

// Called by rank 0 and by rank `other` at about the same time; returns
// microseconds, see Latency.
TF_HVD_EXPORT double tf_hvd_limits_latency(void* segment, int rank, int ranks,
                                           int other) {
  const Segment shared{static_cast<char*>(segment), rank, ranks, 0};
  return Latency(&shared.pings(other, rank),
                 shared.pings(other, rank == 0 ? other : 0));
}

// Returns the latency between two cores of this machine, measured with a thread
// on each, or -1 if this process may not use one of the cores.
TF_HVD_EXPORT double tf_hvd_limits_core_latency(int first, int second) {
  std::array<Counter, 2> counters{};
  std::array<double, 2> found{};
  const auto run = [&](int me, int core) {
    // If one thread may not use its core, the other thread must not wait for
    // a minute.
    if (!BindTo(core)) {
      found[me] = -1;
      counters[me].arrivals = INT64_MAX / 2;
      return;
    }
    found[me] = Latency(&counters[me].arrivals, counters[1 - me].arrivals);
  };
  std::thread other(run, 1, second);
  std::thread one(run, 0, first);
  one.join();
  other.join();
  return std::min(found[0], found[1]);
}

// Returns 0 when all ranks have arrived, or 1 if a rank does not arrive within
// a minute.
TF_HVD_EXPORT int tf_hvd_limits_barrier(void* segment, int rank, int ranks) {
  return Barrier({static_cast<char*>(segment), rank, ranks, 0}) ? 0 : 1;
}

// Writes the sum across all ranks of `count` floats or doubles to `output`,
// which may be `input`. Returns 0, or 1 as above.
TF_HVD_EXPORT int tf_hvd_limits_allreduce(void* segment, int rank, int ranks,
                                          int64_t piece_bytes, int is_double,
                                          const void* input, void* output,
                                          int64_t count) {
  const Segment shared{static_cast<char*>(segment), rank, ranks, piece_bytes};
  const bool done = is_double != 0
                        ? Allreduce(shared, static_cast<const double*>(input),
                                    static_cast<double*>(output), count)
                        : Allreduce(shared, static_cast<const float*>(input),
                                    static_cast<float*>(output), count);
  return done ? 0 : 1;
}

}  // extern "C"
