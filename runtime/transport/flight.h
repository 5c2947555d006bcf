// Flight: the messages that one collective has under way, and the one place
// where it waits for them.
//
// Lives as long as one call of a DataTransport, on the helm holder's thread.
// Messages are posted in lanes, and a lane is waited for as a whole. Whatever
// fails (a message, the pump), all messages of the flight are abandoned.
#ifndef TF_HVD_RUNTIME_TRANSPORT_FLIGHT_H_
#define TF_HVD_RUNTIME_TRANSPORT_FLIGHT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/status.h"
#include "runtime/transport/data_transport.h"
#include "runtime/transport/messenger.h"

namespace tf_hvd {

class Flight {
 public:
  struct Options {
    // More ranks than cores: spinning would only keep the others from working.
    bool yield_at_once = false;
    // Longer messages are cut.
    size_t max_message_bytes = Messenger::kMaxBytes;
    // Kept up to date; outlives the flight. Null: nobody asks.
    Progress* progress = nullptr;
  };

  Flight(Messenger* messenger, const Pump& pump, const Options& options);
  ~Flight() { Abandon(); }

  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;

  // Posts a message of any length; nothing for 0 bytes, on either side.
  Status Send(size_t lane, int peer, const void* data, size_t bytes);
  Status Receive(size_t lane, int peer, void* data, size_t bytes);

  // Returns when all messages of the lane have arrived or gone.
  Status Wait(size_t lane);

  // Calls the pump if it is time to: for work between waits.
  Status Breathe();

  // Copies in pieces, with a breath between them.
  Status Copy(void* to, const void* from, size_t bytes);

  // Lets go of all messages. False, now and ever after, if the memory of one of
  // them may still be touched.
  bool Abandon();

 private:
  using Clock = std::chrono::steady_clock;
  struct Posted {
    Messenger::Ticket ticket = 0;
    int peer = 0;
  };
  using Lane = std::vector<Posted>;

  Lane& LaneAt(size_t lane);
  // Tests each message once; drops what is done.
  Status TestAll(Lane* lane, bool* progress);
  Status BreatheAt(Clock::time_point now);
  void NoteMoved();
  void NoteAwaited(int peer);
  void Rest(Clock::duration waited) const;

  Messenger* const messenger_;
  const Pump& pump_;
  const Options options_;
  std::vector<Lane> lanes_;
  Clock::time_point last_pump_;
  bool certain_ = true;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_FLIGHT_H_
