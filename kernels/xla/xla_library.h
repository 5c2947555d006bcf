// The interface between tf_hvd's library and its XLA part. That part is a
// separate library: it needs all of TensorFlow's XLA, is as large as the rest,
// and is opened when TensorFlow first compiles a collective.
#ifndef TF_HVD_KERNELS_XLA_XLA_LIBRARY_H_
#define TF_HVD_KERNELS_XLA_XLA_LIBRARY_H_

#include "kernels/tf_compat.h"
#include "kernels/xla/compiled_calls.h"

namespace tf_hvd {

// The file is next to tf_hvd's library, with an additional part in its name:
// _tf_hvd_xla_2.21.so next to _tf_hvd_2.21.so.
inline constexpr char kOwnPrefix[] = "_tf_hvd";
inline constexpr char kXlaPrefix[] = "_tf_hvd_xla";

// The library's exports. `Open` is called once and returns an error text or
// null. `Make` creates the kernel for the node of `ctx`.
inline constexpr char kXlaOpen[] = "tf_hvd_xla_open";
inline constexpr char kXlaMake[] = "tf_hvd_xla_make_kernel";
using XlaOpen = const char*(CompiledCalls* calls);
using XlaMake = tf::OpKernel*(tf::OpKernelConstruction* ctx);

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_XLA_XLA_LIBRARY_H_
