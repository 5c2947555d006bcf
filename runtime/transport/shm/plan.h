// ShmPlan: one operation through a node's shared memory, divided into pieces,
// as seen by one rank. It determines the steps of each piece; ShmBackend
// determines when to take them.
//
// Pure except for the memory of the operation and of the slots.
#ifndef TF_HVD_RUNTIME_TRANSPORT_SHM_PLAN_H_
#define TF_HVD_RUNTIME_TRANSPORT_SHM_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/contract/operation.h"
#include "runtime/transport/shm/slot_writer.h"

namespace tf_hvd {

// The slots of one piece, by the places of the ranks in the set. Null for a
// rank that publishes nothing.
using ShmSlots = std::vector<char*>;

class ShmPlan {
 public:
  virtual ~ShmPlan() = default;

  // The number of pieces, the same on all ranks.
  virtual uint64_t count() const = 0;
  // False before the first Consume, if that determines the number.
  virtual bool counted() const { return true; }

  // Whether the rank at that place writes data into its slots for all other
  // ranks.
  virtual bool Publishes(size_t place) const = 0;

  // Step 1: writes the data for the other ranks into this rank's slot, through
  // `writer`.
  virtual void Publish(uint64_t piece, char* slot, SlotWriter* writer) = 0;
  // Step 2, when all other ranks have published: reduces or copies their data.
  // Results for other ranks go into this rank's slot, through `writer` unless
  // they are rewritten before they are read.
  virtual void Consume(uint64_t piece, const ShmSlots& slots,
                       SlotWriter* writer) = 0;

  // True if Consume leaves results for other ranks in this rank's slot. The
  // last step, when all have consumed, gathers the others' results.
  virtual bool has_results() const { return false; }
  virtual void Gather(uint64_t piece, const ShmSlots& slots);
  // Between those steps, if other nodes are involved: the part of this rank's
  // slot to send to them, and the destination of their data. False: nothing to
  // exchange.
  virtual bool Exchange(uint64_t piece, const ShmSlots& slots,
                        OperationSpec* spec) const;
};

// The plan of an operation that ShmBackend serves; `spec` must outlive it.
std::unique_ptr<ShmPlan> PlanInShm(const OperationSpec& spec, size_t me,
                                   size_t slot_bytes);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_SHM_PLAN_H_
