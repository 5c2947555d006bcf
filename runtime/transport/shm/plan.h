// ShmPlan: one operation through a node's shared memory, cut into pieces, in
// the view of one rank. What is done with each piece; when is ShmBackend's.
//
// Pure but for the memory of the operation and of the slots.
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

  // The number of pieces, equal on all ranks.
  virtual uint64_t count() const = 0;
  // False before the first Consume, where the number grows with it.
  virtual bool counted() const { return true; }

  // Whether the rank at that place puts something into its slots, which all
  // others read.
  virtual bool Publishes(size_t place) const = 0;

  // First: puts what the others need of this rank into its slot, by `writer`.
  virtual void Publish(uint64_t piece, char* slot, SlotWriter* writer) = 0;
  // Then, when all of the others' is published: reduces or copies it. Results
  // for others go into this rank's slot, by `writer` where nothing else writes
  // them before they are read.
  virtual void Consume(uint64_t piece, const ShmSlots& slots,
                       SlotWriter* writer) = 0;

  // True if Consume leaves results for the others in this rank's slot. Then
  // last, when all have consumed: gathers theirs.
  virtual bool has_results() const { return false; }
  virtual void Gather(uint64_t piece, const ShmSlots& slots);
  // Between those, if other nodes have their part in it: what this rank gives
  // them of its slot, and where what they give shall go. False: nothing.
  virtual bool Exchange(uint64_t piece, const ShmSlots& slots,
                        OperationSpec* spec) const;
};

// The plan of an operation that ShmBackend serves; `spec` stays.
std::unique_ptr<ShmPlan> PlanInShm(const OperationSpec& spec, size_t me,
                                   size_t slot_bytes);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_SHM_PLAN_H_
