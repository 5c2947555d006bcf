// Random: the only source of randomness in a simulated run. The same seed gives
// the same run on every machine. The distributions of <random> are not used,
// because their results are not specified.
#ifndef TF_HVD_TESTS_RUNTIME_PROTOCOL_RANDOM_H_
#define TF_HVD_TESTS_RUNTIME_PROTOCOL_RANDOM_H_

#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace tf_hvd::protocol_test {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  // SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number
  // generators", 2014.
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  // 0 to n - 1.
  int64_t Below(int64_t n) {
    return static_cast<int64_t>(Next() % static_cast<uint64_t>(n));
  }
  int64_t Between(int64_t low, int64_t high) {
    return low + Below(high - low + 1);
  }
  bool Percent(int chance) { return Below(100) < chance; }

  template <typename T>
  T Pick(std::initializer_list<T> of) {
    return *(of.begin() + Below(static_cast<int64_t>(of.size())));
  }
  template <typename T>
  const T& Pick(const std::vector<T>& of) {
    return of[static_cast<size_t>(Below(static_cast<int64_t>(of.size())))];
  }

  template <typename T>
  void Shuffle(std::vector<T>* items) {
    for (size_t i = items->size(); i > 1; --i) {
      std::swap((*items)[i - 1],
                (*items)[static_cast<size_t>(Below(static_cast<int64_t>(i)))]);
    }
  }

 private:
  uint64_t state_;
};

}  // namespace tf_hvd::protocol_test

#endif  // TF_HVD_TESTS_RUNTIME_PROTOCOL_RANDOM_H_
