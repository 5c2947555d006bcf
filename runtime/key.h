// Key: which request is meant, alike on all ranks. Plain data.
#ifndef TF_HVD_RUNTIME_KEY_H_
#define TF_HVD_RUNTIME_KEY_H_

#include <cstdint>
#include <string>
#include <utility>

namespace tf_hvd {

using Key = std::pair<int32_t, std::string>;  // (set, name on the wire)

// The name of join on the wire; no op can have it.
inline const std::string kJoinName = "\x01join";

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_KEY_H_
