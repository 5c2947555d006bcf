// Request: what is asked of all ranks of a process set under one name, its wire
// form, and the key by which ranks match requests. A Request holds what must be
// equal on all of them; what may differ (the first dimension of allgather) is
// not in it.
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

// In the ranks of the barrier that init makes: what ends each set, and what
// stands for the ranks of a set that a communicator gives.
inline constexpr int32_t kSetEnd = -1;
inline constexpr int32_t kCommunicatorSet = -2;

struct TensorSpec {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;  // shape[0] is -1 where RowsDiffer, unless the
                               // step is compiled
  std::string name = {};       // of a group's member; empty if not known

  friend bool operator==(const TensorSpec& a, const TensorSpec& b) {
    return a.dtype == b.dtype && a.shape == b.shape && a.name == b.name;
  }
};

struct Request {
  OpKind kind = OpKind::kAllreduce;
  DeviceKind device = DeviceKind::kCpu;
  // Made by a step that XLA has compiled: all dimensions are known and equal.
  bool compiled = false;
  ReduceOp reduce_op = ReduceOp::kSum;  // this and the factors: what reduces
  double prescale = 1.0;
  double postscale = 1.0;
  // How the caller made the tensors smaller, as "fp16 of float32"; empty for
  // not at all. For comparison only.
  std::string compression;
  int32_t root = -1;                // what has one: a rank of the world
  int32_t removed_set = 0;          // remove_process_set only
  std::vector<int32_t> ranks;       // add_process_set: sorted; the barrier of
                                    // init: each set, then kSetEnd
  std::vector<TensorSpec> tensors;  // more than one: a group or bucket
};

// True if nothing differs, not even a bit of a scale: just when their wire
// forms are the same.
bool operator==(const Request& a, const Request& b);
inline bool operator!=(const Request& a, const Request& b) { return !(a == b); }

// Little-endian.
std::string EncodeRequest(const Request& request);
Status DecodeRequest(std::string_view bytes, Request* request);

// A request that does not change any more, and its wire form: encoded or
// decoded once, then shared by all who speak of it. Any thread.
class SharedRequest {
 public:
  // None, or what a slot says.
  SharedRequest() = default;
  explicit SharedRequest(Request request);

  // An error if `bytes` are no request.
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

// Of `rows` rows that are shared out: how many the rank at `place` of a set of
// `ranks` gets. What is left over goes to the first ranks, one row each.
int64_t ScatteredRows(int64_t rows, size_t ranks, size_t place);

// The sum of the tensors' sizes in bytes, a dimension of -1 counting as 1.
int64_t TotalBytes(const Request& request);

// Which request is meant, alike on all ranks.
using Key = std::pair<int32_t, std::string>;  // (set, name on the wire)

// The name of join on the wire; no op can have it.
inline const std::string kJoinName = "\x01join";

// Takes what is of that set out of a table that is sorted by keys.
template <typename Table>
void EraseSet(int32_t set, Table* table) {
  table->erase(table->lower_bound(Key(set, "")),
               table->lower_bound(Key(set + 1, "")));
}

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_REQUEST_REQUEST_H_
