// Collective: one group of fused responses, and the operations that execute it
// (stage 7). If numbers of rows may differ they are exchanged first, because
// memory and the second operation depend on them.
//
// Moves no data itself. Called only by the holder of the progress lock.
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
  // The first response determines the kind of all of them; only allreduces are
  // fused.
  explicit Collective(std::vector<Response> responses);

  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  // Returns the next operation, after the previous one has ended; `*some` is
  // false if none is left.
  Status Next(OperationSpec* spec, bool* some);

  // True if no operation follows the ones returned so far.
  bool last_given() const { return specs_.empty() && !exchanging_; }

  // The last operation returned is entirely on a device's stream. Notifies the
  // callers that asked, once, if no operation follows.
  void Enqueued(const std::shared_ptr<GpuEvent>& event);

  std::vector<Response>& responses() { return responses_; }
  const Response& first() const { return responses_.front(); }
  // "allreduce 'g'"
  std::string What() const;

 private:
  OperationSpec Spec() const;
  // The memory of the tensors; for a rank that has joined, the other ranks'
  // kind of memory.
  Memory MemoryOfTensors() const;
  bool OnDevice() const { return first().request->device == DeviceKind::kGpu; }
  Status Plan();
  // One plan for each kind of result (Yield): the whole tensor, reduced or the
  // root's; this rank's rows; the rows of all ranks; the rows sent to this
  // rank. The last two start by exchanging the numbers of rows.
  void PlanReduced();
  void PlanRoots();
  void PlanOwnRows();
  Status PlanExchange();
  Status PlanAllRows();
  Status PlanSentRows();
  Status SeeAllocated(OperationSpec* spec) const;
  std::vector<int64_t> RowsFrom(size_t tensor) const;

  std::vector<Response> responses_;
  std::deque<OperationSpec> specs_;  // still to be returned
  bool planned_ = false;
  // Numbers of rows are being exchanged; the next step is unknown.
  bool exchanging_ = false;
  std::vector<int64_t> rows_;      // this rank's, sent to the other ranks
  std::vector<int64_t> all_rows_;  // as received
  // For rows that are only passed on.
  std::vector<std::shared_ptr<char>> unused_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EXECUTION_COLLECTIVE_H_
