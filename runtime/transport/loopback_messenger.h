// Messages between ranks of one process.
//
// Short messages are copied when they are sent, so that the sender need not
// wait; long ones go straight from the sender's memory to the receiver's, by
// whichever side comes second.
#ifndef TF_HVD_RUNTIME_TRANSPORT_LOOPBACK_MESSENGER_H_
#define TF_HVD_RUNTIME_TRANSPORT_LOOPBACK_MESSENGER_H_

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/status.h"
#include "runtime/transport/messenger.h"

namespace tf_hvd {

// What is on its way from one rank to another. Shared by both; any thread.
class Mailbox {
 public:
  struct Operation {
    const void* from = nullptr;
    void* to = nullptr;
    size_t bytes = 0;
    std::string copy;  // what `from` points to, if the message is short
    std::atomic<bool> done{false};
  };
  using Shared = std::shared_ptr<Operation>;

  // Matches the operation with the oldest one of the other side, or queues it.
  Status Send(const Shared& send);
  Status Receive(const Shared& receive);

  // When this returns nobody uses the operation's memory, now or later.
  void Withdraw(const Shared& operation);

 private:
  static Status Deliver(Operation* send, Operation* receive);

  std::mutex mutex_;
  std::deque<Shared> sends_;  // of the two queues one is empty
  std::deque<Shared> receives_;
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

// As Messenger: one rank, the holder of its helm. Withdraws what is left when
// it is destroyed.
class LoopbackMessenger final : public Messenger {
 public:
  LoopbackMessenger(std::shared_ptr<MailRoom> room, int rank)
      : room_(std::move(room)), rank_(rank) {}
  ~LoopbackMessenger() override;

  Status Send(int peer, const void* data, size_t bytes,
              Ticket* ticket) override;
  Status Receive(int peer, void* data, size_t bytes, Ticket* ticket) override;
  Status Test(Ticket ticket, bool* done) override;
  bool Abandon(Ticket ticket) override;

 private:
  struct Pending {
    Mailbox* mailbox;
    Mailbox::Shared operation;
  };
  // The ticket of an operation; 0 if it is done.
  Ticket TicketFor(Mailbox* mailbox, Mailbox::Shared operation);

  const std::shared_ptr<MailRoom> room_;
  const int rank_;
  Ticket last_ticket_ = 0;
  std::unordered_map<Ticket, Pending> pending_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_LOOPBACK_MESSENGER_H_
