// MessageSet: the messages of one operation that are in transit.
//
// Messages are posted in lanes, and a lane is tested as a whole. After any
// failure, all messages of the set are abandoned. Called only by the holder of
// the progress lock.
#ifndef TF_HVD_RUNTIME_TRANSPORT_P2P_MESSAGE_SET_H_
#define TF_HVD_RUNTIME_TRANSPORT_P2P_MESSAGE_SET_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "runtime/contract/point_to_point.h"

namespace tf_hvd {

class MessageSet {
 public:
  // `tag`: for all its messages. Messages longer than `max_message_bytes` are
  // split.
  MessageSet(PointToPoint* p2p, int tag, size_t max_message_bytes);
  ~MessageSet() { Abandon(); }

  MessageSet(const MessageSet&) = delete;
  MessageSet& operator=(const MessageSet&) = delete;

  // Posts a message of any length. For 0 bytes, neither side posts anything.
  Status Send(size_t lane, int peer, const void* data, size_t bytes);
  Status Receive(size_t lane, int peer, void* data, size_t bytes);

  // Tests each message of the lane once. Sets `*moved` if one is done.
  // `*awaited` is the peer of one that is not done, -1 if all are.
  Status Test(size_t lane, bool* moved, int* awaited);

  // Releases all messages. Permanently false if the memory of one of them may
  // still be accessed.
  bool Abandon();

 private:
  struct Posted {
    PointToPoint::MessageHandle handle = 0;
    int peer = 0;
  };
  using Lane = std::vector<Posted>;

  Lane& LaneAt(size_t lane);

  PointToPoint* const p2p_;
  const int tag_;
  const size_t max_message_bytes_;
  std::vector<Lane> lanes_;
  bool certain_ = true;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_P2P_MESSAGE_SET_H_
