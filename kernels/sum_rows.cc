#include "kernels/sum_rows.h"

#include <cstddef>
#include <string>

#include "compute/device_sums.h"

namespace tf_hvd {

Status FindSumWay(DType dtype, SumWay* way) {
#define TF_HVD_WAY(name, T) {SumRowsOnCpu<T>, 1},
  static constexpr SumWay kWays[] = {TF_HVD_DEVICE_SUMS(TF_HVD_WAY)};
#undef TF_HVD_WAY
  enum { kBytes1, kBytes2, kBytes4, kBytes8, kFloat, kDouble };
  const bool is_complex = IsComplex(dtype);
  const size_t part = SizeOf(dtype) / (is_complex ? 2 : 1);
  if (is_complex || IsFloating(dtype)) {
    if (part < sizeof(float)) {
      return InvalidArgument(std::string("rows of ") + NameOf(dtype) +
                             " are summed as float32; cast them");
    }
    *way = kWays[part == sizeof(float) ? kFloat : kDouble];
  } else if (dtype == DType::kBool) {
    return InvalidArgument("rows of bool have no sums");
  } else {
    *way = kWays[part == 1   ? kBytes1
                 : part == 2 ? kBytes2
                 : part == 4 ? kBytes4
                             : kBytes8];
  }
  way->parts = is_complex ? 2 : 1;
  return Status::Ok();
}

Status CheckOrder(const SumRowsArguments& arguments) {
  int64_t before = 0;
  bool sound = true;
  for (int64_t i = 0; i < arguments.sum_count; ++i) {
    sound = sound && arguments.ends[i] >= before;
    before = arguments.ends[i];
  }
  sound = sound && before <= arguments.rows;
  for (int64_t i = 0; i < arguments.rows; ++i) {
    const int64_t row = arguments.order[i];
    sound = sound && row >= 0 && row < arguments.rows;
  }
  return sound ? Status::Ok()
               : InvalidArgument("an order that leaves the rows");
}

}  // namespace tf_hvd
