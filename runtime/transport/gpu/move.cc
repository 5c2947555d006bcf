#include "runtime/transport/gpu/move.h"

#include <cstring>

namespace tf_hvd {
namespace {

// Up to this number of rows, each thread searches all rows.
constexpr size_t kFewRows = 4;

// Complex numbers are scaled component by component.
DType PartsOf(DType dtype) {
  if (dtype == DType::kComplex64) return DType::kFloat32;
  return dtype == DType::kComplex128 ? DType::kFloat64 : dtype;
}

std::string VerbOf(Scaling::Cast cast) {
  if (cast == Scaling::Cast::kNone) return "tf_hvd_scale_";
  return cast == Scaling::Cast::kNarrow ? "tf_hvd_narrow_" : "tf_hvd_widen_";
}

bool IsIndexed(const GpuMove& move) { return move.rows.size() > kFewRows; }

}  // namespace

size_t GpuMove::row_bytes() const {
  const size_t indexed = IsIndexed(*this) ? blocks() + blocks() % 2 : 0;
  return rows.size() * sizeof(MoveRow) + indexed * sizeof(uint32_t);
}

MoveArguments GpuMove::WriteRows(char* to) const {
  MoveArguments launched = arguments;
  std::memcpy(to, rows.data(), rows.size() * sizeof(MoveRow));
  launched.rows = reinterpret_cast<const MoveRow*>(to);
  if (!IsIndexed(*this)) return launched;
  auto* const first_rows =
      reinterpret_cast<uint32_t*>(to + rows.size() * sizeof(MoveRow));
  uint32_t row = 0;
  for (unsigned block = 0; block < blocks(); ++block) {
    const int64_t begin = static_cast<int64_t>(block) * arguments.tile;
    while (rows[row].end <= begin) ++row;
    first_rows[block] = row;
  }
  launched.first_rows = first_rows;
  return launched;
}

void MoveBuilder::Add(const void* input, void* output, int64_t bytes) {
  const bool stays = input == output && !scaling_.needed();
  if (output == nullptr || bytes == 0 || stays) return;
  runs_.push_back({input, output, bytes});
}

GpuMove MoveBuilder::Build() const {
  GpuMove move;
  auto unit = static_cast<int64_t>(SizeOf(PartsOf(scaling_.dtype)));
  if (scaling_.needed()) {
    move.kernel = VerbOf(scaling_.cast) + NameOf(PartsOf(scaling_.dtype));
    move.arguments.factor = scaling_.factor;
    move.arguments.divisor = scaling_.divisor;
  } else {
    // The widest unit that divides all rows, and to which all are aligned.
    uintptr_t bits = 8;
    for (const Run& run : runs_) {
      bits |= reinterpret_cast<uintptr_t>(run.input) |
              reinterpret_cast<uintptr_t>(run.output) |
              static_cast<uintptr_t>(run.bytes);
    }
    unit = static_cast<int64_t>(bits & (~bits + 1));
    move.kernel = "tf_hvd_copy_" + std::to_string(unit);
  }
  move.arguments.tile = GpuMove::kTileBytes / unit;
  for (const Run& run : runs_) {
    move.arguments.total += run.bytes / unit;
    move.rows.push_back({run.input, run.output, move.arguments.total});
  }
  move.arguments.row_count = static_cast<int64_t>(move.rows.size());
  return move;
}

GpuMove CastMove(const std::vector<MoveRow>& rows, DType from, DType to,
                 double factor, double divisor) {
  GpuMove move;
  move.kernel = std::string("tf_hvd_cast_") + NameOf(from) + "_" + NameOf(to);
  move.arguments.factor = factor;
  move.arguments.divisor = divisor;
  move.arguments.tile =
      GpuMove::kTileBytes / static_cast<int64_t>(sizeof(float));
  for (const MoveRow& row : rows) {
    if (row.output == nullptr) continue;
    move.arguments.total += row.end;
    move.rows.push_back({row.input, row.output, move.arguments.total});
  }
  move.arguments.row_count = static_cast<int64_t>(move.rows.size());
  return move;
}

}  // namespace tf_hvd
