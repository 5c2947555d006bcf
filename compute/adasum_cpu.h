// Adasum: the scalar products of pieces of two vectors, and their combination
//
//   (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b.
//
// As in buffer_ops.h: any thread, with the same bits on each.
#ifndef TF_HVD_COMPUTE_ADASUM_CPU_H_
#define TF_HVD_COMPUTE_ADASUM_CPU_H_

#include <cstddef>
#include <cstdint>

namespace tf_hvd {

struct AdasumProducts {
  double ab;
  double aa;
  double bb;
};

// Adds the products of two pieces of `count` elements. The products of the
// pieces are summed separately first. For float and double, as is the next
// function.
template <typename T>
void AddProductsOf(const T* a, const T* b, int64_t count, AdasumProducts* sums);

// Combines two pieces of a tensor with these products. `output` may be a or b.
template <typename T>
void CombineVectors(const AdasumProducts& products, const T* a, const T* b,
                    int64_t count, T* output);

// sums[i] += others[i].
void AddAllProducts(const AdasumProducts* others, size_t count,
                    AdasumProducts* sums);

}  // namespace tf_hvd

#endif  // TF_HVD_COMPUTE_ADASUM_CPU_H_
