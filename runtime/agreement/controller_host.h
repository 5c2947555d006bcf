// What a controller needs of its surroundings: ResponseRunner carries out what
// has been put in order, ControllerHost does the rest. All are called by the
// holder of the progress lock, inside a call of the controller, and must not
// call the controller back.
#ifndef TF_HVD_RUNTIME_AGREEMENT_CONTROLLER_HOST_H_
#define TF_HVD_RUNTIME_AGREEMENT_CONTROLLER_HOST_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "runtime/agreement/response.h"
#include "runtime/contract/world.h"
#include "runtime/request/entry.h"

namespace tf_hvd {

class ResponseRunner {
 public:
  virtual ~ResponseRunner() = default;
  // What one batch gives this rank to do, in order.
  virtual void Add(std::vector<Response> batch) = 0;
  // Grows while what was added moves.
  virtual uint64_t moved() const = 0;
  // The rank whose data is waited for; -1 if none is.
  virtual int awaited() const = 0;
  // Batches of which nothing has begun.
  virtual size_t Backlog() const = 0;
};

class ControllerHost {
 public:
  virtual ~ControllerHost() = default;
  // Never blocks: what does not fit waits in an out-queue. Several neighbours
  // may be sent the same bytes, which need not stay after the call.
  virtual void Send(int neighbour, std::string_view message) = 0;
  // To be fired when the progress lock is free.
  virtual void Complete(Completion done, Status status, int32_t value) = 0;
  virtual void SetAdded(int32_t set, const SetMembers& members) = 0;
  virtual void SetRemoved(int32_t set) = 0;
  // See WaitGroup::compiling.
  virtual std::string Compiling() const = 0;
  virtual void Warn(const std::string& text) = 0;
  // The job cannot go on.
  virtual void Abort(AbortRecord::Class error_class, int32_t rank,
                     const std::string& text) = 0;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_AGREEMENT_CONTROLLER_HOST_H_
