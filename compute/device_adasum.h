// Adasum on a GPU: the scalar products of two vectors, and what becomes of them
//   (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b
// for any number of tensors in one launch. Products are formed in float64, in
// an order that depends on the tensors' sizes alone: each block sums one tile,
// a second launch the tiles of each tensor. Nothing is added atomically. The
// formula itself serves the CPU as well (adasum_cpu.h).
//
// The functions are those of one thread of a launch. device_adasum.cu.cc makes
// kernels of them; the software GPU of the tests calls the very same.
#ifndef TF_HVD_COMPUTE_DEVICE_ADASUM_H_
#define TF_HVD_COMPUTE_DEVICE_ADASUM_H_

#include "compute/portable.h"

namespace tf_hvd {

// Threads of a block: a power of two.
inline constexpr int kAdasumThreads = 256;

struct AdasumProducts {
  double ab;
  double aa;
  double bb;
};

// One tensor's part of two vectors.
struct AdasumRow {
  const void* a;
  const void* b;
  void* output;   // may be a or b
  int64_t count;  // elements
  int64_t last;   // one past its last tile
};

// The one argument of the kernels. All memory is the device's.
struct AdasumArguments {
  const AdasumRow* rows;
  int64_t row_count;
  int64_t tile;                    // elements that a block works on, of one row
  AdasumProducts* partials;        // of each tile
  AdasumProducts* products;        // of each row
  const AdasumProducts* incoming;  // another rank's products
};

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

// What the two vectors are multiplied with.
struct AdasumWeights {
  double a;
  double b;
};

// A vector of zeros, or of NaN, is added as it is.
TF_HVD_INLINE AdasumWeights WeightsOf(const AdasumProducts& p) {
  return {p.aa > 0.0 ? 1.0 - p.ab / (2.0 * p.aa) : 1.0,
          p.bb > 0.0 ? 1.0 - p.ab / (2.0 * p.bb) : 1.0};
}

template <typename T>
TF_HVD_INLINE T WeightedSum(const AdasumWeights& weights, T a, T b) {
  return static_cast<T>(weights.a * static_cast<double>(a) +
                        weights.b * static_cast<double>(b));
}

// The elements of a tile.
struct AdasumTile {
  int64_t row;
  int64_t begin;
  int64_t end;
};

TF_HVD_INLINE int64_t FirstTile(const AdasumArguments& arguments, int64_t row) {
  return row == 0 ? 0 : arguments.rows[row - 1].last;
}

TF_HVD_INLINE AdasumTile FindTile(const AdasumArguments& arguments,
                                  int64_t tile) {
  // The first row that ends behind the tile.
  int64_t row = 0;
  for (int64_t high = arguments.row_count - 1; row < high;) {
    const int64_t middle = row + (high - row) / 2;
    if (arguments.rows[middle].last > tile) {
      high = middle;
    } else {
      row = middle + 1;
    }
  }
  const int64_t begin = (tile - FirstTile(arguments, row)) * arguments.tile;
  const int64_t count = arguments.rows[row].count;
  const int64_t end = begin + arguments.tile;
  return {row, begin, end < count ? end : count};
}

// Block: a tile. Its products.
template <typename T>
struct DotTile {
  static TF_HVD_INLINE AdasumProducts Part(const AdasumArguments& arguments,
                                           int64_t block, int thread,
                                           int threads) {
    const AdasumTile tile = FindTile(arguments, block);
    const auto* const a = static_cast<const T*>(arguments.rows[tile.row].a);
    const auto* const b = static_cast<const T*>(arguments.rows[tile.row].b);
    AdasumProducts sums{0.0, 0.0, 0.0};
    for (int64_t i = tile.begin + thread; i < tile.end; i += threads) {
      AddProducts(ProductsOf(a[i], b[i]), &sums);
    }
    return sums;
  }
  static TF_HVD_INLINE AdasumProducts* Result(const AdasumArguments& arguments,
                                              int64_t block) {
    return arguments.partials + block;
  }
};

// Block: a row. The sums of its tiles' products; 0 of no tiles.
struct FoldTiles {
  static TF_HVD_INLINE AdasumProducts Part(const AdasumArguments& arguments,
                                           int64_t block, int thread,
                                           int threads) {
    AdasumProducts sums{0.0, 0.0, 0.0};
    const int64_t last = arguments.rows[block].last;
    for (int64_t tile = FirstTile(arguments, block) + thread; tile < last;
         tile += threads) {
      AddProducts(arguments.partials[tile], &sums);
    }
    return sums;
  }
  static TF_HVD_INLINE AdasumProducts* Result(const AdasumArguments& arguments,
                                              int64_t block) {
    return arguments.products + block;
  }
};

// What a thread does in one phase of a block that sums: `half` is first
// `threads`, then half as much each time, and 0 in the last. All threads of the
// block end a phase before one begins the next. `sums`: one of each thread.
template <typename Way>
TF_HVD_INLINE void SumPhase(const AdasumArguments& arguments, int64_t block,
                            int thread, int threads, int half,
                            AdasumProducts* sums) {
  if (half == threads) {
    sums[thread] = Way::Part(arguments, block, thread, threads);
  } else if (thread < half) {
    AddProducts(sums[thread + half], &sums[thread]);
  } else if (half == 0 && thread == 0) {
    *Way::Result(arguments, block) = sums[0];
  }
}

// Blocks that together have a thread for each row: another rank's products are
// added. That rank adds the same two numbers the other way round.
struct AddIncoming {
  static TF_HVD_INLINE void Apply(const AdasumArguments& arguments,
                                  int64_t block, int thread, int threads) {
    const int64_t row = block * threads + thread;
    if (row >= arguments.row_count) return;
    AddProducts(arguments.incoming[row], &arguments.products[row]);
  }
};

// Block: a tile, of which the two vectors become one.
template <typename T>
struct CombineTile {
  static TF_HVD_INLINE void Apply(const AdasumArguments& arguments,
                                  int64_t block, int thread, int threads) {
    const AdasumTile tile = FindTile(arguments, block);
    const AdasumRow& row = arguments.rows[tile.row];
    const AdasumWeights weights = WeightsOf(arguments.products[tile.row]);
    const auto* const a = static_cast<const T*>(row.a);
    const auto* const b = static_cast<const T*>(row.b);
    auto* const output = static_cast<T*>(row.output);
    for (int64_t i = tile.begin + thread; i < tile.end; i += threads) {
      output[i] = WeightedSum(weights, a[i], b[i]);
    }
  }
};

// Kernels: name, way. Those of blocks that sum, in phases; and the others.
#define TF_HVD_DEVICE_ADASUM_SUMS(KERNEL)     \
  KERNEL(tf_hvd_dot_float32, DotTile<float>)  \
  KERNEL(tf_hvd_dot_float64, DotTile<double>) \
  KERNEL(tf_hvd_fold_products, FoldTiles)

#define TF_HVD_DEVICE_ADASUM_MAPS(KERNEL)            \
  KERNEL(tf_hvd_add_products, AddIncoming)           \
  KERNEL(tf_hvd_combine_float32, CombineTile<float>) \
  KERNEL(tf_hvd_combine_float64, CombineTile<double>)

}  // namespace tf_hvd

#endif  // TF_HVD_COMPUTE_DEVICE_ADASUM_H_
