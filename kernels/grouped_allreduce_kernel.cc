// HorovodGroupedAllreduce: all inputs of a call are one request.
#include "kernels/allreduce_kernel.h"

namespace tf_hvd {

REGISTER_KERNEL_BUILDER(Name("HorovodGroupedAllreduce").Device(tf::DEVICE_CPU),
                        AllreduceKernel);

}  // namespace tf_hvd
