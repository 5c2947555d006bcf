// Key: which request is meant, alike on all ranks. Plain data.
#ifndef TF_HVD_RUNTIME_REQUEST_KEY_H_
#define TF_HVD_RUNTIME_REQUEST_KEY_H_

#include <cstdint>
#include <string>
#include <utility>

namespace tf_hvd {

using Key = std::pair<int32_t, std::string>;  // (set, name on the wire)

// The name of join on the wire; no op can have it.
inline const std::string kJoinName = "\x01join";

// Takes what is of that set out of a table that is sorted by keys.
template <typename Table>
void EraseSet(int32_t set, Table* table) {
  table->erase(table->lower_bound(Key(set, "")),
               table->lower_bound(Key(set + 1, "")));
}

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_REQUEST_KEY_H_
