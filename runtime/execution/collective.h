// Collective: one group of fused responses, as the operations that it is made
// of (stage 7). Where numbers of rows may differ they are exchanged first:
// memory and the second operation depend on them.
//
// Moves nothing itself. Holder of the progress lock only.
#ifndef TF_HVD_RUNTIME_EXECUTION_COLLECTIVE_H_
#define TF_HVD_RUNTIME_EXECUTION_COLLECTIVE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "runtime/agreement/response.h"
#include "runtime/contract/operation.h"

namespace tf_hvd {

class Collective {
 public:
  // The first response says what all of them are; only allreduces are fused.
  explicit Collective(std::vector<Response> responses);

  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  // Gives the next operation, once the one before has ended; `*some` is false
  // if there is none any more.
  Status Next(OperationSpec* spec, bool* some);

  // True if no operation comes after those that were given.
  bool last_given() const { return specs_.empty() && !exchanging_; }

  // The operation that was given last lies on a device's stream: tells the
  // callers that asked, once, if none comes after it.
  void Enqueued(const std::shared_ptr<GpuEvent>& event);

  std::vector<Response>& responses() { return responses_; }
  const Response& first() const { return responses_.front(); }
  // "allreduce 'g'"
  std::string What() const;

 private:
  OperationSpec Spec() const;
  // Where the tensors lie; of a rank that has joined, where the others' do.
  Memory MemoryOfTensors() const;
  bool OnDevice() const { return first().request->device == DeviceKind::kGpu; }
  Status Plan();
  // Each for what a rank gets (Yield): the whole, reduced or the root's; its
  // own rows; the rows of all ranks, and those that they send, which both begin
  // with the exchange of their numbers.
  void PlanReduced();
  void PlanRoots();
  void PlanOwnRows();
  Status PlanExchange();
  Status PlanAllRows();
  Status PlanSentRows();
  Status SeeAllocated(OperationSpec* spec) const;
  std::vector<int64_t> RowsFrom(size_t tensor) const;

  std::vector<Response> responses_;
  std::deque<OperationSpec> specs_;  // still to be given
  bool planned_ = false;
  bool exchanging_ = false;  // rows are on their way; what follows is not known
  std::vector<int64_t> rows_;      // this rank's, that it tells the others
  std::vector<int64_t> all_rows_;  // as they come
  std::vector<std::shared_ptr<char>> unused_;  // where rows only pass through
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EXECUTION_COLLECTIVE_H_
