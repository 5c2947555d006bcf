// Request: a call that all ranks of a process set make under one name, its wire
// form, and the key by which ranks match requests. A Request holds the fields
// that must be the same on all ranks. It excludes those that may differ, such
// as the first dimension of allgather.
#ifndef TF_HVD_RUNTIME_REQUEST_REQUEST_H_
#define TF_HVD_RUNTIME_REQUEST_REQUEST_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/types.h"

namespace tf_hvd {

// Separators in the ranks of init's barrier: the end of each set, and a
// placeholder for the ranks of a set that a communicator gives.
inline constexpr int32_t kSetEnd = -1;
inline constexpr int32_t kCommunicatorSet = -2;

struct TensorSpec {
  DType dtype = DType::kFloat32;
  // shape[0] is -1 if RowsDiffer, unless the step is compiled.
  std::vector<int64_t> shape;
  std::string name = {};  // for a member of a group; empty if not known

  friend bool operator==(const TensorSpec& a, const TensorSpec& b) {
    return a.dtype == b.dtype && a.shape == b.shape && a.name == b.name;
  }
};

struct Request {
  OpKind kind = OpKind::kAllreduce;
  DeviceKind device = DeviceKind::kCpu;
  // Made by a step that XLA has compiled: all dimensions are known and equal.
  bool compiled = false;
  // For kinds that reduce, as are the factors.
  ReduceOp reduce_op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  // How the caller compressed the tensors, as "fp16 of float32"; empty if it
  // did not. For comparison only.
  std::string compression;
  int32_t root = -1;        // for kinds with a root: a rank of the world
  int32_t removed_set = 0;  // remove_process_set only
  // add_process_set: sorted; init's barrier: each set, then kSetEnd.
  std::vector<int32_t> ranks;
  std::vector<TensorSpec> tensors;  // more than one: a group or bucket
};

// True if nothing differs, not even a bit of a scale: exactly if the wire forms
// are equal.
bool operator==(const Request& a, const Request& b);
inline bool operator!=(const Request& a, const Request& b) { return !(a == b); }

// Little-endian.
std::string EncodeRequest(const Request& request);
Status DecodeRequest(std::string_view bytes, Request* request);

// An immutable request and its wire form: encoded or decoded once, then shared
// by all users. Any thread.
class SharedRequest {
 public:
  // No request, or one filled from a slot.
  SharedRequest() = default;
  explicit SharedRequest(Request request);

  // An error if `bytes` are not a valid request.
  static Status Decode(std::string_view bytes, SharedRequest* request);

  explicit operator bool() const { return both_ != nullptr; }
  const Request& operator*() const { return both_->request; }
  const Request* operator->() const { return &both_->request; }
  // Empty if there is none.
  std::string_view bytes() const {
    return both_ == nullptr ? std::string_view() : both_->bytes;
  }

  friend bool operator==(const SharedRequest& a, const SharedRequest& b) {
    return a.both_ == b.both_ || a.bytes() == b.bytes();
  }
  friend bool operator!=(const SharedRequest& a, const SharedRequest& b) {
    return !(a == b);
  }

 private:
  struct Both {
    Request request;
    std::string bytes;
  };

  std::shared_ptr<const Both> both_;
};

// Of `rows` rows to be distributed, the number for the rank at `place` of a set
// of `ranks`. The remainder goes to the first ranks, one row each.
int64_t ScatteredRows(int64_t rows, size_t ranks, size_t place);

// The sum of the tensors' sizes in bytes; a dimension of -1 counts as 1.
int64_t TotalBytes(const Request& request);

// Identifies a request, equally on all ranks.
using Key = std::pair<int32_t, std::string>;  // (set, name on the wire)

// The name of join on the wire; no op can have it.
inline const std::string kJoinName = "\x01join";

// Removes and returns the entries of one set from a table sorted by keys.
template <typename Table>
void EraseSet(int32_t set, Table* table) {
  table->erase(table->lower_bound(Key(set, "")),
               table->lower_bound(Key(set + 1, "")));
}

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_REQUEST_REQUEST_H_
