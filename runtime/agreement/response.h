// Response: one ordered request, from the message that announces it to the
// ranks until the executor has finished it.
#ifndef TF_HVD_RUNTIME_AGREEMENT_RESPONSE_H_
#define TF_HVD_RUNTIME_AGREEMENT_RESPONSE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/request/entry.h"
#include "runtime/request/request.h"

namespace tf_hvd {

inline constexpr uint32_t kNoSlot = 0xffffffffu;

// Plain data, owned by the holder of the progress lock.
struct Response {
  Key key{kWorldSet,
          ""};  // without the name on the wire if a slot stands for it
  uint32_t slot = kNoSlot;
  bool define = false;   // the name and `request` are slot `slot` from now on
  bool close = false;    // the runtime ends; `error` says why
  bool through = false;  // close: the rank that left had made all its calls
  bool joined = false;   // some members take part with zeros
  // Join: the last rank; add_process_set: the new set; close: the rank that
  // left. Unused otherwise.
  int32_t value = 0;
  // The request that the ranks agreed on. Not on the wire if a slot stands for
  // it, or for close.
  SharedRequest request;
  std::string error;  // not empty: the request fails with this text

  // Not on the wire: this rank's data, if it is a member of the set.
  SetMembers ranks;          // of the set
  std::optional<Entry> own;  // absent if this rank has joined, or refused
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_AGREEMENT_RESPONSE_H_
