// Ordering: from "complete, and coordinated here" to a response batch. Says
// what becomes of a request, numbers what is new (slots of names, process
// sets), in which order the responses of a batch stand, and which of them each
// child gets.
//
// Waits for nothing: when a batch is made is the controller's matter. Owned by
// the holder of the progress lock.
#ifndef TF_HVD_RUNTIME_AGREEMENT_ORDERING_H_
#define TF_HVD_RUNTIME_AGREEMENT_ORDERING_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string_view>
#include <vector>

#include "runtime/agreement/decision.h"
#include "runtime/agreement/message.h"
#include "runtime/agreement/process_set.h"
#include "runtime/request/request.h"

namespace tf_hvd {

class Ordering {
 public:
  using Send = std::function<void(int child, std::string_view message)>;

  // `sets` outlives it. A name that is agreed here is offered a slot there.
  explicit Ordering(ProcessSets* sets) : sets_(*sets) {}

  // A request is complete; this is the coordinator of its set.
  void Add(const Key& key, Vote vote);

  bool empty() const { return ready_.empty(); }
  bool Contains(const Key& key) const { return ready_.count(key) > 0; }

  // What is ready, as a batch: sorted, so that all ranks fuse alike whatever
  // became ready first.
  std::vector<Response> TakeBatch();

  // What has to go before `batch`: where that ends something, what is ready
  // here was complete before the end arrived. Else empty.
  std::vector<Response> TakeBefore(const std::vector<Response>& batch);

  // Sends each child what concerns it of a batch.
  void Forward(const std::vector<Response>& batch, const Send& send);

  // A batch, not only one of this controller, has added this set.
  void SetAdded(int32_t set);
  // The set is gone.
  void DropSet(int32_t set);
  // The runtime has ended.
  void Clear() { ready_.clear(); }

  // For tests: responses that were encoded, for whichever children.
  uint64_t responses_encoded() const { return responses_encoded_; }

 private:
  Response MakeResponse(const Key& key, const Vote& vote);

  ProcessSets& sets_;
  std::map<Key, Vote> ready_;  // complete, not yet in a batch
  SourceNames names_;          // that the sets coordinated here have told
  int32_t next_set_ = 1;       // the top's number for the next added set
  uint64_t responses_encoded_ = 0;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_AGREEMENT_ORDERING_H_
