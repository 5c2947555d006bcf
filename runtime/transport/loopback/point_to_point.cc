#include "runtime/transport/loopback/point_to_point.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tf_hvd {
namespace {

constexpr size_t kCopiedBytes = size_t{64} << 10;

}  // namespace

Status Mailbox::Deliver(Operation* send, Operation* receive) {
  if (send->bytes != receive->bytes) {
    return Internal(
        "bug in tf_hvd: a message of " + std::to_string(send->bytes) +
        " bytes does not match a receive of " + std::to_string(receive->bytes));
  }
  if (send->bytes > 0) std::memcpy(receive->to, send->from, send->bytes);
  send->done.store(true, std::memory_order_release);
  receive->done.store(true, std::memory_order_release);
  return Status::Ok();
}

Mailbox::Shared Mailbox::TakeOldest(int tag, std::deque<Shared>* queue) {
  const auto found =
      std::find_if(queue->begin(), queue->end(),
                   [tag](const Shared& one) { return one->tag == tag; });
  if (found == queue->end()) return nullptr;
  Shared taken = std::move(*found);
  queue->erase(found);
  return taken;
}

Status Mailbox::Send(const Shared& send) {
  const MutexLock lock(&mutex_);
  const Shared receive = TakeOldest(send->tag, &receives_);
  if (receive != nullptr) return Deliver(send.get(), receive.get());
  if (send->bytes <= kCopiedBytes) {
    send->copy.assign(static_cast<const char*>(send->from), send->bytes);
    send->from = send->copy.data();
    send->done.store(true, std::memory_order_release);
  }
  sends_.push_back(send);
  return Status::Ok();
}

Status Mailbox::Receive(const Shared& receive) {
  const MutexLock lock(&mutex_);
  const Shared send = TakeOldest(receive->tag, &sends_);
  if (send != nullptr) return Deliver(send.get(), receive.get());
  receives_.push_back(receive);
  return Status::Ok();
}

void Mailbox::Withdraw(const Shared& operation) {
  const MutexLock lock(&mutex_);
  for (std::deque<Shared>* queue : {&sends_, &receives_}) {
    queue->erase(std::remove(queue->begin(), queue->end(), operation),
                 queue->end());
  }
}

MailRoom::MailRoom(int ranks) : ranks_(static_cast<size_t>(ranks)) {
  if (ranks == 1) return;
  for (size_t i = 0; i < ranks_ * ranks_; ++i) {
    boxes_.push_back(std::make_unique<Mailbox>());
  }
}

Mailbox* MailRoom::Between(int sender, int receiver) {
  return boxes_[static_cast<size_t>(sender) * ranks_ +
                static_cast<size_t>(receiver)]
      .get();
}

LoopbackPointToPoint::~LoopbackPointToPoint() {
  for (const auto& [handle, pending] : pending_) {
    pending.mailbox->Withdraw(pending.operation);
  }
}

PointToPoint::MessageHandle LoopbackPointToPoint::HandleFor(
    Mailbox* mailbox, Mailbox::Shared operation) {
  if (operation->done.load(std::memory_order_acquire)) return 0;
  pending_.emplace(++last_handle_, Pending{mailbox, std::move(operation)});
  return last_handle_;
}

Status LoopbackPointToPoint::Send(int peer, int tag, const void* data,
                                  size_t bytes, MessageHandle* handle) {
  Mailbox* const mailbox = room_->Between(rank_, peer);
  auto send = std::make_shared<Mailbox::Operation>();
  send->from = data;
  send->bytes = bytes;
  send->tag = tag;
  TF_HVD_RETURN_IF_ERROR(mailbox->Send(send));
  *handle = HandleFor(mailbox, std::move(send));
  return Status::Ok();
}

Status LoopbackPointToPoint::Receive(int peer, int tag, void* data,
                                     size_t bytes, MessageHandle* handle) {
  Mailbox* const mailbox = room_->Between(peer, rank_);
  auto receive = std::make_shared<Mailbox::Operation>();
  receive->to = data;
  receive->bytes = bytes;
  receive->tag = tag;
  TF_HVD_RETURN_IF_ERROR(mailbox->Receive(receive));
  *handle = HandleFor(mailbox, std::move(receive));
  return Status::Ok();
}

Status LoopbackPointToPoint::Test(MessageHandle handle, bool* done) {
  *done = true;
  const auto found = pending_.find(handle);
  if (found == pending_.end()) return Status::Ok();
  *done = found->second.operation->done.load(std::memory_order_acquire);
  if (*done) pending_.erase(found);
  return Status::Ok();
}

bool LoopbackPointToPoint::Abandon(MessageHandle handle) {
  const auto found = pending_.find(handle);
  if (found != pending_.end()) {
    found->second.mailbox->Withdraw(found->second.operation);
    pending_.erase(found);
  }
  return true;
}

}  // namespace tf_hvd
