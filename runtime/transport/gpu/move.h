// GpuMove: one launch of a kernel that moves tensors within a device
// (compute/device_moves.h), from what is to be moved to the kernel's name and
// rows. Pure: addresses are only compared.
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
  // Threads of a block, and the bytes that one moves.
  static constexpr unsigned kThreads = 256;
  static constexpr int64_t kTileBytes = 32 * 1024;

  std::string kernel;
  std::vector<MoveRow> rows;
  MoveArguments arguments{};  // but for the rows

  bool empty() const { return rows.empty(); }
  unsigned blocks() const {
    return static_cast<unsigned>((arguments.total + arguments.tile - 1) /
                                 arguments.tile);
  }
  // What the device reads: the rows, then the one that each block begins in,
  // where it would search for that in more than a few.
  size_t row_bytes() const;
  // `to`: memory that the device reads. Gives the arguments of the launch.
  MoveArguments WriteRows(char* to) const;
};

// What is done with elements on their way; nothing by default.
struct Scaling {
  DType dtype = DType::kUint8;
  double factor = 1.0;
  double divisor = 1.0;
  // Compression: from float32 to `dtype`, or back, a half precision that it is
  // scaled in.
  enum class Cast { kNone, kNarrow, kWiden } cast = Cast::kNone;

  // True if a copy of the bytes will not do: bools may be any byte but 0.
  bool needed() const {
    return factor != 1.0 || divisor != 1.0 || dtype == DType::kBool ||
           cast != Cast::kNone;
  }
};

class MoveBuilder {
 public:
  explicit MoveBuilder(const Scaling& scaling) : scaling_(scaling) {}

  // A null input stands for zeros; a null output for nowhere. With a cast,
  // `bytes` are those of Scaling::dtype.
  void Add(const void* input, void* output, int64_t bytes);

  // Empty if there is nothing to be moved.
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

// Between tensors of a half precision and their float32 accumulators, scaled as
// LoadAccumulator and StoreAccumulator do. `rows`: of each, `end` is its own
// number of elements; a null input stands for zeros, a null output for nowhere.
GpuMove CastMove(const std::vector<MoveRow>& rows, DType from, DType to,
                 double factor, double divisor = 1.0);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_MOVE_H_
