#include "runtime/transport/gpu/mpi_communicator.h"

#include <algorithm>
#include <string>

#include "runtime/transport/mpi_library/library.h"

namespace tf_hvd {
namespace {

constexpr int kTag = 1;
constexpr size_t kMessageBytes = size_t{1} << 30;  // MPI's counts are ints

}  // namespace

Status MpiCommunicator::Put(const GpuCall& call, CudaStream stream) {
  TF_HVD_RETURN_IF_ERROR(device_->Record(stream, &before_));
  return Write(call, stream);
}

// Data that stays on this rank is copied on the stream, concurrently with the
// messages.
Status MpiCommunicator::Write(const GpuCall& call, CudaStream stream) {
  const auto* from = static_cast<const char*>(call.input);
  auto* to = static_cast<char*>(call.output);
  const auto me = static_cast<size_t>(me_);
  size_t own = call.count;
  switch (call.kind) {
    case OpKind::kAlltoall:
      for (size_t peer = 0; peer < me; ++peer) {
        from += call.send[peer];
        to += call.receive[peer];
      }
      own = static_cast<size_t>(call.send[me]);
      WriteAlltoall(call);
      break;
    case OpKind::kAllgather:
      to += call.count * me;
      WriteAllgather(call);
      break;
    case OpKind::kBroadcast:
      if (me_ != call.root) own = 0;
      WriteBroadcast(call);
      break;
    default:
      return Internal("bug in tf_hvd: MPI cannot execute " +
                      std::string(NameOf(call.kind)));
  }
  if (own == 0 || from == to) return Status::Ok();
  return device_->Copy(stream, to, from, own);
}

void MpiCommunicator::WriteAlltoall(const GpuCall& call) {
  const auto* send = static_cast<const char*>(call.input);
  auto* receive = static_cast<char*>(call.output);
  for (int peer = 0; peer < ranks_; ++peer) {
    const int64_t sent = call.send[static_cast<size_t>(peer)];
    const int64_t received = call.receive[static_cast<size_t>(peer)];
    if (peer != me_) {
      Receive(peer, receive, static_cast<size_t>(received));
      Send(peer, send, static_cast<size_t>(sent));
    }
    send += sent;
    receive += received;
  }
}

void MpiCommunicator::WriteAllgather(const GpuCall& call) {
  auto* const all = static_cast<char*>(call.output);
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer == me_) continue;
    Receive(peer, all + call.count * static_cast<size_t>(peer), call.count);
    Send(peer, call.input, call.count);
  }
}

// Down a binomial tree with the root as place 0: a place's parent is its number
// without the lowest set bit.
void MpiCommunicator::WriteBroadcast(const GpuCall& call) {
  const int place = (me_ - call.root + ranks_) % ranks_;
  const auto rank_of = [&](int of) { return (of + call.root) % ranks_; };
  const int lowest = place == 0 ? ranks_ : place & -place;
  for (int bit = 1; bit < lowest && place + bit < ranks_; bit *= 2) {
    Send(rank_of(place + bit), place == 0 ? call.input : call.output,
         call.count);
  }
  if (place == 0) return;
  messages_.swap(then_);  // sent to the places below after it has arrived
  Receive(rank_of(place - lowest), call.output, call.count);
}

void MpiCommunicator::Send(int peer, const void* data, size_t bytes) {
  messages_.push_back({false, peer, static_cast<const char*>(data), bytes});
}

void MpiCommunicator::Receive(int peer, void* data, size_t bytes) {
  messages_.push_back({true, peer, static_cast<const char*>(data), bytes});
}

Status MpiCommunicator::Ready(bool* ready) {
  *ready = false;
  if (before_ != nullptr) {
    bool fired = false;
    TF_HVD_RETURN_IF_ERROR(device_->HasFired(*before_, &fired));
    if (!fired) return Status::Ok();
    before_.reset();
    TF_HVD_RETURN_IF_ERROR(Post(&messages_));
  }
  TF_HVD_RETURN_IF_ERROR(TestAll(ready));
  if (!*ready || then_.empty()) return Status::Ok();
  TF_HVD_RETURN_IF_ERROR(Post(&then_));
  return TestAll(ready);
}

// MPI works in the current context.
Status MpiCommunicator::Post(std::vector<Message>* messages) {
  return device_->Within([&]() -> Status {
    for (const Message& message : *messages) {
      TF_HVD_RETURN_IF_ERROR(PostOne(message));
    }
    messages->clear();
    return Status::Ok();
  });
}

Status MpiCommunicator::PostOne(const Message& message) {
  for (size_t at = 0; at < message.bytes; at += kMessageBytes) {
    const int bytes =
        static_cast<int>(std::min(kMessageBytes, message.bytes - at));
    const char* const data = message.data + at;
    MpiHandle request{nullptr};
    const char* const call = message.receives ? "MPI_Irecv" : "MPI_Isend";
    const int error =
        message.receives
            ? api_->irecv(api_->state, const_cast<char*>(data), bytes,
                          message.peer, kTag, comm_, &request)
            : api_->isend(api_->state, data, bytes, message.peer, kTag, comm_,
                          &request);
    TF_HVD_RETURN_IF_ERROR(MpiResult(*api_, call, error));
    requests_.push_back(request);
  }
  return Status::Ok();
}

Status MpiCommunicator::TestAll(bool* ended) {
  *ended = requests_.empty();
  if (*ended) return Status::Ok();
  return device_->Within([&]() -> Status {
    while (!requests_.empty()) {
      int done = 0;
      TF_HVD_RETURN_IF_ERROR(
          MpiResult(*api_, "MPI_Test",
                    api_->test(api_->state, &requests_.back(), &done,
                               /*bytes=*/nullptr)));
      if (done == 0) return Status::Ok();
      requests_.pop_back();
    }
    *ended = true;
    return Status::Ok();
  });
}

}  // namespace tf_hvd
