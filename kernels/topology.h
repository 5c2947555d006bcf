// The numbers of the job that HorovodSize, HorovodRank and similar ops return.
// Nothing is communicated. Any thread.
#ifndef TF_HVD_KERNELS_TOPOLOGY_H_
#define TF_HVD_KERNELS_TOPOLOGY_H_

#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "runtime/api/runtime.h"

namespace tf_hvd {

// Gets the number of an op, by the op's name. `set` is for ops that take a
// process set.
Status ReadNumber(const Runtime& runtime, std::string_view op, int32_t set,
                  int32_t* value);

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_TOPOLOGY_H_
