#include "benchmarks/scale/messages.h"

#include <algorithm>
#include <utility>

namespace tf_hvd::scale {
namespace {

constexpr double kTestNs = 10;  // of a test for one message

}  // namespace

MailRoom::Box& MailRoom::BoxOf(int from, int to, int tag) {
  const auto ranks = static_cast<uint64_t>(network_->ranks());
  const uint64_t pair =
      static_cast<uint64_t>(from) * ranks + static_cast<uint64_t>(to);
  return boxes_[pair * PointToPoint::kTags + static_cast<uint64_t>(tag)];
}

MailRoom::HandleId MailRoom::NewHandle() {
  if (free_.empty()) {
    done_.push_back(false);
    free_.push_back(done_.size());
  }
  const HandleId handle = free_.back();
  free_.pop_back();
  done_[handle - 1] = false;
  return handle;
}

bool MailRoom::Take(HandleId handle) {
  if (!done_[handle - 1]) return false;
  free_.push_back(handle);
  return true;
}

void MailRoom::EndAt(int64_t time_ns, HandleId handle, int rank) {
  time_->At(std::max(time_ns, time_->now()), [this, handle, rank] {
    done_[handle - 1] = true;
    wake_(rank);
  });
}

void MailRoom::Match(int from, int to, const Posted& send,
                     const Posted& receive) {
  if (send.eager) return EndAt(send.ready_ns, receive.handle, to);
  // The sender must first learn that the receiver is ready.
  time_->At(time_->now() + network_->LatencyNs(to, from),
            [this, from, to, sent = send.handle, received = receive.handle,
             bytes = send.bytes] {
              const int64_t arrived_ns = network_->Carry(from, to, bytes);
              EndAt(arrived_ns - network_->LatencyNs(from, to), sent, from);
              EndAt(arrived_ns, received, to);
            });
}

MailRoom::HandleId MailRoom::Send(int from, int to, int tag, size_t bytes) {
  if (network_->NodeOf(from) != network_->NodeOf(to)) {
    ++messages_;
    bytes_ += static_cast<double>(bytes);
  }
  Posted send{NewHandle(), bytes, 0, false};
  send.eager = static_cast<double>(bytes) <= network_->costs().eager_bytes;
  if (send.eager) {
    done_[send.handle - 1] = true;
    send.ready_ns = network_->Carry(from, to, bytes);
  }
  Box& box = BoxOf(from, to, tag);
  if (box.receives.empty()) {
    box.sends.push_back(send);
  } else {
    const Posted receive = box.receives.front();
    box.receives.pop_front();
    Match(from, to, send, receive);
  }
  return send.handle;
}

MailRoom::HandleId MailRoom::Receive(int to, int from, int tag, size_t bytes) {
  const Posted receive{NewHandle(), bytes, 0, false};
  Box& box = BoxOf(from, to, tag);
  if (box.sends.empty()) {
    box.receives.push_back(receive);
  } else {
    const Posted send = box.sends.front();
    box.sends.pop_front();
    Match(from, to, send, receive);
  }
  return receive.handle;
}

Status SimPointToPoint::Send(int peer, int tag, const void*, size_t bytes,
                             MessageHandle* handle) {
  time_->Charge(network_->costs().message_ns);
  time_->Settle();
  *handle = room_->Send(rank_, peer, tag, bytes);
  return Status::Ok();
}

Status SimPointToPoint::Receive(int peer, int tag, void*, size_t bytes,
                                MessageHandle* handle) {
  time_->Charge(network_->costs().message_ns);
  time_->Settle();
  *handle = room_->Receive(rank_, peer, tag, bytes);
  return Status::Ok();
}

Status SimPointToPoint::Test(MessageHandle handle, bool* done) {
  time_->Charge(kTestNs);
  *done = handle == 0 || room_->Take(handle);
  return Status::Ok();
}

size_t SimEdge::Write(const char* data, size_t size) {
  written_.append(data, size);
  return size;
}

void SimEdge::Flush() {
  if (written_.empty()) return;
  if (polled()) time_->Charge(network_->costs().message_ns);
  time_->Settle();
  last_ns_ =
      std::max(last_ns_, network_->Carry(rank_, neighbour_, written_.size()));
  time_->At(last_ns_, [this, bytes = std::exchange(written_, {})] {
    other_->arrived_ += bytes;
    wake_(neighbour_);
  });
}

size_t SimEdge::Read(char* data, size_t size) {
  const size_t given = std::min(size, arrived_.size());
  arrived_.copy(data, given);
  arrived_.erase(0, given);
  return given;
}

// Messages between nodes use MPI.
bool SimEdge::polled() const {
  return network_->NodeOf(rank_) != network_->NodeOf(neighbour_);
}

}  // namespace tf_hvd::scale
