#include "base/status.h"

namespace tf_hvd {

const std::string& Status::message() const {
  static const std::string* const kEmpty = new std::string;
  return ok() ? *kEmpty : rep_->message;
}

Status Status::WithContext(const std::string& context) const {
  return ok() ? *this : Status(rep_->code, context + ": " + rep_->message);
}

Status InvalidArgument(std::string message) {
  return Status(StatusCode::kInvalidArgument, std::move(message));
}
Status FailedPrecondition(std::string message) {
  return Status(StatusCode::kFailedPrecondition, std::move(message));
}
Status Aborted(std::string message) {
  return Status(StatusCode::kAborted, std::move(message));
}
Status Internal(std::string message) {
  return Status(StatusCode::kInternal, std::move(message));
}

}  // namespace tf_hvd
