// Messages between ranks of one process.
//
// Short messages are copied when they are sent, so that the sender need not
// wait. Long messages are copied directly from the sender's memory to the
// receiver's, by the side that posts second.
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

// The messages in transit from one rank to another. Shared by both; any thread.
class Mailbox {
 public:
  struct Operation {
    const void* from = nullptr;
    void* to = nullptr;
    size_t bytes = 0;
    int tag = 0;
    std::string copy;  // the message's data, if it is short
    std::atomic<bool> done{false};
  };
  using Shared = std::shared_ptr<Operation>;

  // Matches the operation with the oldest one of the same tag on the other
  // side, or queues it.
  Status Send(const Shared& send);
  Status Receive(const Shared& receive);

  // After this returns, no thread uses the operation's memory any more.
  void Withdraw(const Shared& operation);

 private:
  static Status Deliver(Operation* send, Operation* receive);

  // Removes and returns the oldest operation with a tag from a queue; null if
  // none.
  static Shared TakeOldest(int tag, std::deque<Shared>* queue);

  Mutex mutex_;
  // For each tag, at most one of the two queues has operations.
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

// A PointToPoint of one rank, for the holder of its progress lock. The
// destructor withdraws the remaining operations.
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
