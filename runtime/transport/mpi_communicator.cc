#include "runtime/transport/mpi_communicator.h"

#include <algorithm>
#include <optional>
#include <string>

#include "runtime/transport/mpi_error.h"

namespace tf_hvd {
namespace {

constexpr int kTag = 1;
constexpr size_t kMessageBytes = size_t{1} << 30;  // MPI counts in int

std::optional<MpiNumber> NumberOf(NcclNumber number) {
  switch (number) {
    case NcclNumber::kInt8:
      return MpiNumber::kInt8;
    case NcclNumber::kUint8:
      return MpiNumber::kUint8;
    case NcclNumber::kInt32:
      return MpiNumber::kInt32;
    case NcclNumber::kUint32:
      return MpiNumber::kUint32;
    case NcclNumber::kInt64:
      return MpiNumber::kInt64;
    case NcclNumber::kUint64:
      return MpiNumber::kUint64;
    case NcclNumber::kFloat32:
      return MpiNumber::kFloat;
    case NcclNumber::kFloat64:
      return MpiNumber::kDouble;
    default:
      return std::nullopt;
  }
}

size_t BytesOf(NcclNumber number) {
  switch (number) {
    case NcclNumber::kInt8:
    case NcclNumber::kUint8:
      return 1;
    case NcclNumber::kFloat16:
    case NcclNumber::kBfloat16:
      return 2;
    case NcclNumber::kInt32:
    case NcclNumber::kUint32:
    case NcclNumber::kFloat32:
      return 4;
    default:
      return 8;
  }
}

MpiReduction ReductionOf(NcclReduction reduction) {
  switch (reduction) {
    case NcclReduction::kProduct:
      return MpiReduction::kProduct;
    case NcclReduction::kMax:
      return MpiReduction::kMax;
    case NcclReduction::kMin:
      return MpiReduction::kMin;
    default:
      return MpiReduction::kSum;
  }
}

}  // namespace

size_t MpiCommunicator::bytes() const {
  return call_.count * BytesOf(call_.number);
}

Status MpiCommunicator::Put(const NcclCall& call, CudaStream stream) {
  call_ = call;
  stream_ = stream;
  copy_bytes_ = 0;
  return device_->Record(stream, &before_);
}

Status MpiCommunicator::Ready(bool* ready) {
  *ready = false;
  if (before_ != nullptr) {
    bool fired = false;
    TF_HVD_RETURN_IF_ERROR(device_->HasFired(*before_, &fired));
    if (!fired) return Status::Ok();
    before_.reset();
    // MPI works in the context that is current.
    TF_HVD_RETURN_IF_ERROR(device_->Within([this] { return Post(); }));
  }
  while (!requests_.empty()) {
    bool done = false;
    TF_HVD_RETURN_IF_ERROR(device_->Within([&] { return Test(&done); }));
    if (!done) return Status::Ok();
    requests_.pop_back();
  }
  if (copy_bytes_ > 0) {
    TF_HVD_RETURN_IF_ERROR(
        device_->Copy(stream_, copy_to_, copy_from_, copy_bytes_));
    copy_bytes_ = 0;
  }
  *ready = true;
  return Status::Ok();
}

Status MpiCommunicator::Test(bool* done) {
  int ended = 0;
  TF_HVD_RETURN_IF_ERROR(MpiResult(
      *api_, "MPI_Test",
      api_->test(api_->state, &requests_.back(), &ended, /*bytes=*/nullptr)));
  *done = ended != 0;
  return Status::Ok();
}

Status MpiCommunicator::Check(const char* call, int error, MpiHandle request) {
  if (error == 0) requests_.push_back(request);
  return MpiResult(*api_, call, error);
}

Status MpiCommunicator::Post() {
  switch (call_.kind) {
    case OpKind::kAllreduce:
      return PostAllreduce();
    case OpKind::kReducescatter:
      return PostReducescatter();
    case OpKind::kAllgather:
      return PostAllgather();
    case OpKind::kBroadcast:
      return PostBroadcast();
    case OpKind::kAlltoall:
      return PostAlltoall();
    default:
      return Internal("bug in tf_hvd: MPI has no " +
                      std::string(NameOf(call_.kind)));
  }
}

Status MpiCommunicator::PostAllreduce() {
  const void* const input = call_.input == call_.output ? nullptr : call_.input;
  MpiHandle request{nullptr};
  const int error = api_->iallreduce(
      api_->state, input, call_.output, static_cast<int>(call_.count),
      *NumberOf(call_.number), ReductionOf(call_.reduction), comm_, &request);
  return Check("MPI_Iallreduce", error, request);
}

// In place: the result comes to the begin of the input, where NCCL's, and the
// plan's, lies at this rank's part of it.
Status MpiCommunicator::PostReducescatter() {
  MpiHandle request{nullptr};
  const int error = api_->ireduce_scatter_block(
      api_->state, const_cast<void*>(call_.input),
      static_cast<int>(call_.count), *NumberOf(call_.number),
      ReductionOf(call_.reduction), comm_, &request);
  if (call_.output != call_.input) {
    copy_from_ = call_.input;
    copy_to_ = call_.output;
    copy_bytes_ = bytes();
  }
  return Check("MPI_Ireduce_scatter_block", error, request);
}

Status MpiCommunicator::PostAllgather() {
  const char* const mine =
      static_cast<const char*>(call_.output) + bytes() * size_t(me_);
  MpiHandle request{nullptr};
  const int error = api_->iallgather(
      api_->state, call_.input == mine ? nullptr : call_.input, call_.output,
      static_cast<int>(bytes()), comm_, &request);
  return Check("MPI_Iallgather", error, request);
}

Status MpiCommunicator::PostBroadcast() {
  const bool gives = me_ == call_.root;
  if (gives && call_.input != call_.output) {
    copy_from_ = call_.input;
    copy_to_ = call_.output;
    copy_bytes_ = bytes();
  }
  MpiHandle request{nullptr};
  const int error = api_->ibroadcast(
      api_->state, gives ? const_cast<void*>(call_.input) : call_.output,
      static_cast<int>(bytes()), call_.root, comm_, &request);
  return Check("MPI_Ibcast", error, request);
}

Status MpiCommunicator::PostAlltoall() {
  const auto* send = static_cast<const char*>(call_.input);
  auto* receive = static_cast<char*>(call_.output);
  for (size_t peer = 0; peer < call_.send.size(); ++peer) {
    if (static_cast<int>(peer) == me_) {
      copy_from_ = send;
      copy_to_ = receive;
      copy_bytes_ = static_cast<size_t>(call_.send[peer]);
    } else {
      TF_HVD_RETURN_IF_ERROR(Exchange(peer, send, receive));
    }
    send += call_.send[peer];
    receive += call_.receive[peer];
  }
  return Status::Ok();
}

Status MpiCommunicator::Exchange(size_t peer, const char* send, char* receive) {
  const int to = static_cast<int>(peer);
  const auto cut = [](int64_t bytes, const auto& move) {
    const auto all = static_cast<size_t>(bytes);
    for (size_t at = 0; at < all; at += kMessageBytes) {
      const int some = static_cast<int>(std::min(kMessageBytes, all - at));
      TF_HVD_RETURN_IF_ERROR(move(at, some));
    }
    return Status::Ok();
  };
  TF_HVD_RETURN_IF_ERROR(
      cut(call_.receive[peer], [&](size_t at, int some) -> Status {
        MpiHandle request{nullptr};
        const int error = api_->irecv(api_->state, receive + at, some, to, kTag,
                                      comm_, &request);
        return Check("MPI_Irecv", error, request);
      }));
  return cut(call_.send[peer], [&](size_t at, int some) -> Status {
    MpiHandle request{nullptr};
    const int error =
        api_->isend(api_->state, send + at, some, to, kTag, comm_, &request);
    return Check("MPI_Isend", error, request);
  });
}

}  // namespace tf_hvd
