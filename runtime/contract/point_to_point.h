// PointToPoint: point-to-point messages between any two ranks, the ground on
// which the collectives of p2p/ stand. Never blocks.
//
// Between two ranks messages of one tag arrive in the order of their posting.
// All members are called by the holder of the progress lock only.
#ifndef TF_HVD_RUNTIME_CONTRACT_POINT_TO_POINT_H_
#define TF_HVD_RUNTIME_CONTRACT_POINT_TO_POINT_H_

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace tf_hvd {

class PointToPoint {
 public:
  // An operation in progress. 0 is none: it tests as done.
  using MessageHandle = uint64_t;

  // No message is longer; callers cut.
  static constexpr size_t kMaxBytes = size_t{1} << 30;
  // Tags are from 0 to below this. MPI has at least twice as many.
  static constexpr int kTags = 16384;

  virtual ~PointToPoint() = default;

  // Posts a message. `data` must stay as it is until the handle tests as done.
  virtual Status Send(int peer, int tag, const void* data, size_t bytes,
                      MessageHandle* handle) = 0;

  // Posts the receipt of a message of exactly `bytes` bytes.
  virtual Status Receive(int peer, int tag, void* data, size_t bytes,
                         MessageHandle* handle) = 0;

  // Moves things along. Once `*done` was true the handle is gone and must not
  // be tested again; after an error it is to be abandoned.
  virtual Status Test(MessageHandle handle, bool* done) = 0;

  // Lets go of an operation that will not be waited for (after an abort). True
  // if its memory is certainly not touched any more.
  virtual bool Abandon(MessageHandle handle) = 0;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_CONTRACT_POINT_TO_POINT_H_
