// Ordering: from "complete, and coordinated here" to a response batch. Decides
// the outcome of a request, numbers new names (slots) and process sets, sorts
// the responses of a batch, and selects those that each child gets.
//
// Waits for nothing: the controller decides when to make a batch. Owned by the
// holder of the progress lock.
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

  // `sets` outlives this object. Names agreed here are offered slots there.
  explicit Ordering(ProcessSets* sets) : sets_(*sets) {}

  // Adds a complete request; this controller is the coordinator of its set.
  void Add(const Key& key, Vote vote);

  bool empty() const { return ready_.empty(); }
  bool Contains(const Key& key) const { return ready_.count(key) > 0; }

  // The ready requests as a batch, sorted so that all ranks fuse alike, in
  // whatever order requests became ready.
  std::vector<Response> TakeBatch();

  // The responses that must be sent before `batch`. If `batch` ends a set or
  // the runtime, requests that are ready here were complete before that end.
  // Otherwise empty.
  std::vector<Response> TakeBefore(const std::vector<Response>& batch);

  // Sends each child its part of a batch.
  void Forward(const std::vector<Response>& batch, const Send& send);

  // A batch, from this controller or another, has added this set.
  void SetAdded(int32_t set);
  // The set has been removed.
  void DropSet(int32_t set);
  // The runtime has ended.
  void Clear() { ready_.clear(); }

  // For tests: number of responses encoded for all children.
  uint64_t responses_encoded() const { return responses_encoded_; }

 private:
  Response MakeResponse(const Key& key, const Vote& vote);

  ProcessSets& sets_;
  std::map<Key, Vote> ready_;  // complete, not yet in a batch
  SourceNames names_;          // sent by ranks of the sets coordinated here
  int32_t next_set_ = 1;       // the top's number for the next added set
  uint64_t responses_encoded_ = 0;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_AGREEMENT_ORDERING_H_
