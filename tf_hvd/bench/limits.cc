// What this machine allows, for `tf_hvd bench`: a barrier and an allreduce
// between the processes of one machine, with nothing around them. No error
// handling but a time limit, no types but two, no other thread: what any
// runtime adds is its overhead.
//
// The allreduce: the ranks walk the buffer in pieces that stay in the cache. Of
// each piece a rank owns one part. It copies the other parts into its area,
// adds what the others have copied for it to its own part, in the order of
// ranks, leaves the sum in its area, and takes the others' sums from theirs.
//
// Every rank calls the same functions in the same order, from one thread at a
// time.

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>

namespace {

constexpr int kAreas =
    2;  // a rank may begin a piece while another ends the last
constexpr int64_t kLine = 64;
constexpr int64_t kSpins = 2000;
constexpr std::chrono::seconds kPatience{60};

struct alignas(kLine) Counter {
  std::atomic<int64_t> arrivals;
};

// The shared segment, zero at first: a counter for each rank, then each rank's
// areas.
struct Segment {
  char* base;
  int rank;
  int ranks;
  int64_t piece_bytes;

  std::atomic<int64_t>& arrivals(int of) const {
    return (reinterpret_cast<Counter*>(base) + of)->arrivals;
  }
  char* area(int of, int64_t index) const {
    return base + ranks * kLine + (of * kAreas + index) * piece_bytes;
  }
};

// False if another rank has not come within the limit.
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

// Which values of a piece a rank owns.
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

// to = a + b: one pass where there are two ranks.
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
    // The other area than that of the piece before, which may be another
    // call's.
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

// How many bytes the ranks must share.
TF_HVD_EXPORT int64_t tf_hvd_limits_segment_bytes(int ranks,
                                                  int64_t piece_bytes) {
  return ranks * (kLine + kAreas * piece_bytes);
}

// 0 when all ranks are here; 1 if one has not come within a minute.
TF_HVD_EXPORT int tf_hvd_limits_barrier(void* segment, int rank, int ranks) {
  return Barrier({static_cast<char*>(segment), rank, ranks, 0}) ? 0 : 1;
}

// The sum over ranks of `count` floats, or doubles, into `output`, which may be
// `input`. 0, or 1 as above.
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
