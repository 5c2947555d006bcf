// Messages between ranks of one process.
//
// Short messages are copied when they are sent, so that the sender need not
// wait; long ones go straight from the sender's memory to the receiver's, by
// whichever side comes second.
#ifndef TF_HVD_RUNTIME_TRANSPORT_LOOPBACK_POINT_TO_POINT_H_
#define TF_HVD_RUNTIME_TRANSPORT_LOOPBACK_POINT_TO_POINT_H_

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "runtime/contract/point_to_point.h"

namespace tf_hvd {

// What is on its way from one rank to another. Shared by both; any thread.
class Mailbox {
 public:
  struct Operation {
    const void* from = nullptr;
    void* to = nullptr;
    size_t bytes = 0;
    int tag = 0;
    std::string copy;  // what `from` points to, if the message is short
    std::atomic<bool> done{false};
  };
  using Shared = std::shared_ptr<Operation>;

  // Matches the operation with the oldest one of its tag on the other side, or
  // queues it.
  Status Send(const Shared& send);
  Status Receive(const Shared& receive);

  // When this returns nobody uses the operation's memory, now or later.
  void Withdraw(const Shared& operation);

 private:
  static Status Deliver(Operation* send, Operation* receive);

  // Takes the oldest of a tag from a queue; null if there is none.
  static Shared TakeOldest(int tag, std::deque<Shared>* queue);

  Mutex mutex_;
  // Of a tag one of the two queues has none.
  std::deque<Shared> sends_ GUARDED_BY(mutex_);
  std::deque<Shared> receives_ GUARDED_BY(mutex_);
};

// The mailboxes between all pairs of `ranks` ranks.
class MailRoom {
 public:
  explicit MailRoom(int ranks);
  Mailbox* Between(int sender, int receiver);

 private:
  const size_t ranks_;
  std::vector<std::unique_ptr<Mailbox>> boxes_;
};

// As PointToPoint: of one rank, for the holder of its progress lock. Withdraws
// what is left when it is destroyed.
class LoopbackPointToPoint final : public PointToPoint {
 public:
  LoopbackPointToPoint(std::shared_ptr<MailRoom> room, int rank)
      : room_(std::move(room)), rank_(rank) {}
  ~LoopbackPointToPoint() override;

  Status Send(int peer, int tag, const void* data, size_t bytes,
              MessageHandle* handle) override;
  Status Receive(int peer, int tag, void* data, size_t bytes,
                 MessageHandle* handle) override;
  Status Test(MessageHandle handle, bool* done) override;
  bool Abandon(MessageHandle handle) override;

 private:
  struct Pending {
    Mailbox* mailbox;
    Mailbox::Shared operation;
  };
  // The handle of an operation; 0 if it is done.
  MessageHandle HandleFor(Mailbox* mailbox, Mailbox::Shared operation);

  const std::shared_ptr<MailRoom> room_;
  const int rank_;
  MessageHandle last_handle_ = 0;
  std::unordered_map<MessageHandle, Pending> pending_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_LOOPBACK_POINT_TO_POINT_H_
