// The controller's interface to its surroundings: ResponseRunner executes
// ordered requests, ControllerHost does the rest. All members are called by the
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
  // Adds this rank's work from one batch, in order.
  virtual void Add(std::vector<Response> batch) = 0;
  // Increases while the added work makes progress.
  virtual uint64_t moved() const = 0;
  // The rank that this one needs data from; -1 if none.
  virtual int awaited() const = 0;
  // Number of batches that have not started.
  virtual size_t Backlog() const = 0;
};

class ControllerHost {
 public:
  virtual ~ControllerHost() = default;
  // Never blocks: bytes that do not fit wait in an out-queue. Several
  // neighbours may be sent the same bytes, which may be freed after the call.
  virtual void Send(int neighbour, std::string_view message) = 0;
  // Fires the completion when the progress lock is free.
  virtual void Complete(Completion done, Status status, int32_t value) = 0;
  virtual void SetAdded(int32_t set, const SetMembers& members) = 0;
  virtual void SetRemoved(int32_t set) = 0;
  // See WaitGroup::compiling.
  virtual std::string Compiling() const = 0;
  // Asks the program for its current line without waiting for the answer, which
  // Place returns a moment later. False: no answer will come.
  virtual bool AskPlace() = 0;
  // See WaitGroup::place.
  virtual std::string Place() const = 0;
  virtual void Warn(const std::string& text) = 0;
  // The job cannot continue.
  virtual void Abort(AbortRecord::Class error_class, int32_t rank,
                     const std::string& text) = 0;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_AGREEMENT_CONTROLLER_HOST_H_
