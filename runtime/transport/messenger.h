// Messenger: point-to-point messages between any two ranks, the ground on which
// the collectives of p2p_transport stand. Never blocks.
//
// Between two ranks messages arrive in the order of their posting. All members
// are called by the holder of the helm only.
#ifndef TF_HVD_RUNTIME_TRANSPORT_MESSENGER_H_
#define TF_HVD_RUNTIME_TRANSPORT_MESSENGER_H_

#include <cstddef>
#include <cstdint>

#include "runtime/status.h"

namespace tf_hvd {

class Messenger {
 public:
  // An operation in progress. 0 is none: it tests as done.
  using Ticket = uint64_t;

  // No message is longer; callers cut.
  static constexpr size_t kMaxBytes = size_t{1} << 30;

  virtual ~Messenger() = default;

  // Posts a message. `data` must stay as it is until the ticket is done.
  virtual Status Send(int peer, const void* data, size_t bytes,
                      Ticket* ticket) = 0;

  // Posts the receipt of a message of exactly `bytes` bytes.
  virtual Status Receive(int peer, void* data, size_t bytes,
                         Ticket* ticket) = 0;

  // Moves things along. Once `*done` was true the ticket is gone and must not
  // be tested again; after an error it is to be abandoned.
  virtual Status Test(Ticket ticket, bool* done) = 0;

  // Lets go of an operation that will not be waited for (after an abort). True
  // if its memory is certainly not touched any more.
  virtual bool Abandon(Ticket ticket) = 0;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_MESSENGER_H_
