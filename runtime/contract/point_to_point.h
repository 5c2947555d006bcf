// PointToPoint: point-to-point messages between any two ranks, the basis of the
// collectives in p2p/. Never blocks.
//
// Between two ranks, messages with the same tag arrive in the order in which
// they were posted. All members are called only by the holder of the progress
// lock.
#ifndef TF_HVD_RUNTIME_CONTRACT_POINT_TO_POINT_H_
#define TF_HVD_RUNTIME_CONTRACT_POINT_TO_POINT_H_

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace tf_hvd {

class PointToPoint {
 public:
  // An operation in progress. 0 stands for none and tests as done.
  using MessageHandle = uint64_t;

  // Maximum length of a message; callers split longer data.
  static constexpr size_t kMaxBytes = size_t{1} << 30;
  // Tags range from 0 to below this. MPI has at least twice as many.
  static constexpr int kTags = 16384;

  virtual ~PointToPoint() = default;

  // Posts a message. `data` must not change until the handle tests as done.
  virtual Status Send(int peer, int tag, const void* data, size_t bytes,
                      MessageHandle* handle) = 0;

  // Posts the receipt of a message of exactly `bytes` bytes.
  virtual Status Receive(int peer, int tag, void* data, size_t bytes,
                         MessageHandle* handle) = 0;

  // Makes progress. After `*done` was true the handle is invalid and must not
  // be tested again; after an error the handle must be abandoned.
  virtual Status Test(MessageHandle handle, bool* done) = 0;

  // Releases an operation that will not be waited for (after an abort). True if
  // its memory is certainly no longer accessed.
  virtual bool Abandon(MessageHandle handle) = 0;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_CONTRACT_POINT_TO_POINT_H_
