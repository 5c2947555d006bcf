// GpuMove: one launch of a kernel that moves tensors within a device
// (compute/device_moves.h): computes the kernel's name and rows from the
// tensors. Pure: addresses are only compared.
#ifndef TF_HVD_RUNTIME_TRANSPORT_GPU_MOVE_H_
#define TF_HVD_RUNTIME_TRANSPORT_GPU_MOVE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/types.h"
#include "compute/device_moves.h"

namespace tf_hvd {

struct GpuMove {
  // Threads of a block, and the bytes that one thread moves.
  static constexpr unsigned kThreads = 256;
  static constexpr int64_t kTileBytes = 32 * 1024;

  std::string kernel;
  std::vector<MoveRow> rows;
  MoveArguments arguments{};  // except the rows

  bool empty() const { return rows.empty(); }
  unsigned blocks() const {
    return static_cast<unsigned>((arguments.total + arguments.tile - 1) /
                                 arguments.tile);
  }
  // The data that the device reads: the rows, then each block's first row, if
  // the block would otherwise search more than a few rows.
  size_t row_bytes() const;
  // `to`: memory that the device reads. Returns the arguments of the launch.
  MoveArguments WriteRows(char* to) const;
};

// The conversion of moved elements; none by default.
struct Scaling {
  DType dtype = DType::kUint8;
  double factor = 1.0;
  double divisor = 1.0;
  // Compression: from float32 to `dtype`, or back; scaling is done in that half
  // precision.
  enum class Cast { kNone, kNarrow, kWiden } cast = Cast::kNone;

  // True if copying the bytes is not sufficient: bools may be any byte except
  // 0.
  bool needed() const {
    return factor != 1.0 || divisor != 1.0 || dtype == DType::kBool ||
           cast != Cast::kNone;
  }
};

class MoveBuilder {
 public:
  explicit MoveBuilder(const Scaling& scaling) : scaling_(scaling) {}

  // A null input stands for zeros; with a null output the data is discarded.
  // With a cast, `bytes` are those of Scaling::dtype.
  void Add(const void* input, void* output, int64_t bytes);

  // Empty if nothing is moved.
  GpuMove Build() const;

 private:
  struct Run {
    const void* input;
    void* output;
    int64_t bytes;
  };

  const Scaling scaling_;
  std::vector<Run> runs_;
};

// Moves between half-precision tensors and their float32 accumulators,
// scaled as LoadAccumulator and StoreAccumulator do. `rows`: `end` is each
// row's number of elements; a null input stands for zeros, with a null output
// the data is discarded.
GpuMove CastMove(const std::vector<MoveRow>& rows, DType from, DType to,
                 double factor, double divisor = 1.0);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_MOVE_H_
