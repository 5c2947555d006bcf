// Status: the outcome of a call. One pointer, null on success.
//
// Three kinds of failure exist (docs/errors.md): a user's mistake
// (kInvalidArgument, kFailedPrecondition), a failure of the environment
// (kAborted: a rank died, or the launcher and the MPI do not match) and a bug
// in tf_hvd (kInternal). WithContext prefixes the text with the operation that
// failed.
//
// Immutable after construction, so any thread may read it.
#ifndef TF_HVD_BASE_STATUS_H_
#define TF_HVD_BASE_STATUS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace tf_hvd {

enum class StatusCode : uint8_t {
  kOk = 0,
  kInvalidArgument = 1,     // one rank's call is invalid on its own
  kFailedPrecondition = 2,  // ranks disagree, or the runtime is not running
  kAborted = 3,             // the job cannot continue: death, stall, leave
  kInternal = 4,            // a bug in tf_hvd
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message)
      : rep_(std::make_shared<Rep>(Rep{code, std::move(message)})) {}

  static Status Ok() { return Status(); }

  bool ok() const { return rep_ == nullptr; }
  StatusCode code() const { return ok() ? StatusCode::kOk : rep_->code; }
  // Empty when ok.
  const std::string& message() const;

  // The same code, with `context` prepended to the message ("context:
  // message"). An ok Status stays ok.
  Status WithContext(const std::string& context) const;

 private:
  struct Rep {
    StatusCode code;
    std::string message;
  };
  std::shared_ptr<const Rep> rep_;
};

Status InvalidArgument(std::string message);
Status FailedPrecondition(std::string message);
Status Aborted(std::string message);
Status Internal(std::string message);

// Returns from the calling function if the Status is not ok.
#define TF_HVD_RETURN_IF_ERROR(expression)           \
  do {                                               \
    ::tf_hvd::Status tf_hvd_status_ = (expression);  \
    if (!tf_hvd_status_.ok()) return tf_hvd_status_; \
  } while (false)

}  // namespace tf_hvd

#endif  // TF_HVD_BASE_STATUS_H_
