#include "compute/adasum_cpu.h"

#include "compute/float_environment.h"
#include "compute/portable.h"

namespace tf_hvd {
namespace {

TF_HVD_INLINE void AddProducts(const AdasumProducts& other,
                               AdasumProducts* sums) {
  sums->ab += other.ab;
  sums->aa += other.aa;
  sums->bb += other.bb;
}

// Of one element of each vector.
template <typename T>
TF_HVD_INLINE AdasumProducts ProductsOf(T a, T b) {
  const auto x = static_cast<double>(a);
  const auto y = static_cast<double>(b);
  return {x * y, x * x, y * y};
}

// The factors of the two vectors.
struct AdasumWeights {
  double a;
  double b;
};

// A vector that is all zeros, or has a NaN, is added unscaled.
TF_HVD_INLINE AdasumWeights WeightsOf(const AdasumProducts& p) {
  return {p.aa > 0.0 ? 1.0 - p.ab / (2.0 * p.aa) : 1.0,
          p.bb > 0.0 ? 1.0 - p.ab / (2.0 * p.bb) : 1.0};
}

template <typename T>
TF_HVD_INLINE T WeightedSum(const AdasumWeights& weights, T a, T b) {
  return static_cast<T>(weights.a * static_cast<double>(a) +
                        weights.b * static_cast<double>(b));
}

template <typename T>
TF_HVD_LOOP void ProductsLoop(const T* a, const T* b, int64_t count,
                              AdasumProducts* sums) {
  AdasumProducts part{0.0, 0.0, 0.0};
  for (int64_t i = 0; i < count; ++i) {
    AddProducts(ProductsOf(a[i], b[i]), &part);
  }
  AddProducts(part, sums);
}

// The output is either one of the inputs or does not overlap them, see
// buffer_ops_cpu.cc.
template <typename T>
TF_HVD_LOOP void CombineLoop(const AdasumProducts& products, const T* a,
                             const T* b, int64_t count, T* output) {
  const AdasumWeights weights = WeightsOf(products);
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    output[i] = WeightedSum(weights, a[i], b[i]);
  }
}

TF_HVD_LOOP void AddLoop(const AdasumProducts* others, size_t count,
                         AdasumProducts* sums) {
  for (size_t i = 0; i < count; ++i) AddProducts(others[i], &sums[i]);
}

}  // namespace

template <typename T>
void AddProductsOf(const T* a, const T* b, int64_t count,
                   AdasumProducts* sums) {
  const StandardFloatEnvironment environment;
  ProductsLoop(a, b, count, sums);
}

template <typename T>
void CombineVectors(const AdasumProducts& products, const T* a, const T* b,
                    int64_t count, T* output) {
  const StandardFloatEnvironment environment;
  CombineLoop(products, a, b, count, output);
}

void AddAllProducts(const AdasumProducts* others, size_t count,
                    AdasumProducts* sums) {
  const StandardFloatEnvironment environment;
  AddLoop(others, count, sums);
}

template void AddProductsOf(const float* a, const float* b, int64_t count,
                            AdasumProducts* sums);
template void AddProductsOf(const double* a, const double* b, int64_t count,
                            AdasumProducts* sums);
template void CombineVectors(const AdasumProducts& products, const float* a,
                             const float* b, int64_t count, float* output);
template void CombineVectors(const AdasumProducts& products, const double* a,
                             const double* b, int64_t count, double* output);

}  // namespace tf_hvd
