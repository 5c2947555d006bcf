#include "runtime/transport/mpi/point_to_point.h"

#include <string>

#include "runtime/transport/mpi_library/library.h"

namespace tf_hvd {
namespace {

Status CheckLength(size_t bytes) {
  if (bytes <= PointToPoint::kMaxBytes) return Status::Ok();
  return Internal("bug in tf_hvd: a message of " + std::to_string(bytes) +
                  " bytes");
}

}  // namespace

PointToPoint::MessageHandle MpiPointToPoint::Keep(const Operation& operation) {
  if (free_.empty()) {
    operations_.push_back(operation);
    return operations_.size();
  }
  const MessageHandle handle = free_.back();
  free_.pop_back();
  operations_[handle - 1] = operation;
  return handle;
}

void MpiPointToPoint::Forget(MessageHandle handle) { free_.push_back(handle); }

Status MpiPointToPoint::Send(int peer, int tag, const void* data, size_t bytes,
                             MessageHandle* handle) {
  TF_HVD_RETURN_IF_ERROR(CheckLength(bytes));
  Operation operation;
  operation.bytes = bytes;
  const int code = api_->isend(api_->state, data, static_cast<int>(bytes), peer,
                               first_tag_ + tag, comm_, &operation.request);
  TF_HVD_RETURN_IF_ERROR(MpiResult(*api_, "MPI_Isend", code));
  *handle = Keep(operation);
  return Status::Ok();
}

Status MpiPointToPoint::Receive(int peer, int tag, void* data, size_t bytes,
                                MessageHandle* handle) {
  TF_HVD_RETURN_IF_ERROR(CheckLength(bytes));
  Operation operation;
  operation.bytes = bytes;
  operation.receives = true;
  const int code = api_->irecv(api_->state, data, static_cast<int>(bytes), peer,
                               first_tag_ + tag, comm_, &operation.request);
  TF_HVD_RETURN_IF_ERROR(MpiResult(*api_, "MPI_Irecv", code));
  *handle = Keep(operation);
  return Status::Ok();
}

Status MpiPointToPoint::Test(MessageHandle handle, bool* done) {
  *done = true;
  if (handle == 0) return Status::Ok();
  Operation& operation = operations_[handle - 1];
  int flag = 0;
  int bytes = 0;
  const int code = api_->test(api_->state, &operation.request, &flag, &bytes);
  if (code != 0) {
    operation.failed = true;  // the request still belongs to the caller
    return MpiResult(*api_, "MPI_Test", code);
  }
  *done = flag != 0;
  if (!*done) return Status::Ok();
  if (operation.receives && static_cast<size_t>(bytes) != operation.bytes) {
    operation.failed = operation.arrived = true;
    return Internal("bug in tf_hvd: a message of " + std::to_string(bytes) +
                    " bytes was received instead of " +
                    std::to_string(operation.bytes) + " bytes");
  }
  Forget(handle);
  return Status::Ok();
}

bool MpiPointToPoint::Abandon(MessageHandle handle) {
  if (handle == 0) return true;
  Operation& operation = operations_[handle - 1];
  if (operation.failed) {
    // The request no longer exists. MPI may still use the memory of a request
    // that failed.
    const bool arrived = operation.arrived;
    Forget(handle);
    return arrived;
  }
  // A send cannot be cancelled, and a receive only if nothing has arrived yet.
  if (operation.receives) api_->cancel(api_->state, &operation.request);
  int done = 0;
  const int code = api_->test(api_->state, &operation.request, &done, nullptr);
  const bool over = code == 0 && done != 0;
  if (over) Forget(handle);
  return over;
}

}  // namespace tf_hvd
