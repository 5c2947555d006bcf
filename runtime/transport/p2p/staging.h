// Staging: memory of an operation where data lies on its way.
#ifndef TF_HVD_RUNTIME_TRANSPORT_P2P_STAGING_H_
#define TF_HVD_RUNTIME_TRANSPORT_P2P_STAGING_H_

#include <cstddef>
#include <functional>

namespace tf_hvd {

// Gives memory of at least so many bytes that stays until the end of the
// operation. Called at most once for an operation.
using Staging = std::function<char*(size_t bytes)>;

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_P2P_STAGING_H_
