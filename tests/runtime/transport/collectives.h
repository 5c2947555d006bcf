// The operations of backends as calls that return when the result is ready.
#ifndef TF_HVD_TESTS_RUNTIME_TRANSPORT_COLLECTIVES_H_
#define TF_HVD_TESTS_RUNTIME_TRANSPORT_COLLECTIVES_H_

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/contract/operation.h"

namespace tf_hvd {

inline ReduceOptions Options(DType dtype, ReduceOp op, double prescale = 1.0,
                             double postscale = 1.0) {
  ReduceOptions options;
  options.dtype = dtype;
  options.op = op;
  options.prescale = prescale;
  options.postscale = postscale;
  return options;
}

// Backends' operations as calls that return when the result is ready.
class Collectives {
 public:
  // Called while an operation waits; an error that it returns ends the
  // operation.
  using Meanwhile = std::function<Status()>;

  explicit Collectives(Backend* backend)
      : Collectives(std::vector<Backend*>{backend}) {}
  // The first that serves an operation gets it.
  explicit Collectives(std::vector<Backend*> backends)
      : backends_(std::move(backends)) {}

  Status Allreduce(const std::vector<int>& ranks,
                   const std::vector<Span>& spans, const ReduceOptions& options,
                   const Meanwhile& meanwhile = nullptr) {
    OperationSpec spec = Spec(OpKind::kAllreduce, ranks);
    spec.spans = spans;
    spec.reduce = options;
    return Run(std::move(spec), meanwhile);
  }
  Status Allgather(const std::vector<int>& ranks, const void* mine,
                   const std::vector<int64_t>& bytes, void* output,
                   const Meanwhile& meanwhile = nullptr) {
    OperationSpec spec = Spec(OpKind::kAllgather, ranks);
    auto* at = static_cast<char*>(output);
    for (const int64_t of_rank : bytes) {
      spec.spans.push_back({mine, at, of_rank});
      at += of_rank;
    }
    return Run(std::move(spec), meanwhile);
  }
  // `data` of the rank `root`, a member.
  Status Broadcast(const std::vector<int>& ranks, int root, void* data,
                   int64_t bytes, const Meanwhile& meanwhile = nullptr) {
    return BroadcastGroup(ranks, root, {{data, data, bytes}}, meanwhile);
  }
  Status BroadcastGroup(const std::vector<int>& ranks, int root,
                        const std::vector<Span>& spans,
                        const Meanwhile& meanwhile = nullptr) {
    OperationSpec spec = Spec(OpKind::kBroadcast, ranks);
    const auto found = std::lower_bound(ranks.begin(), ranks.end(), root);
    spec.root = found != ranks.end() && *found == root
                    ? static_cast<size_t>(found - ranks.begin())
                    : ranks.size();
    spec.spans = spans;
    return Run(std::move(spec), meanwhile);
  }
  Status Reducescatter(const std::vector<int>& ranks, const void* input,
                       const std::vector<int64_t>& counts, void* output,
                       const ReduceOptions& options,
                       const Meanwhile& meanwhile = nullptr) {
    OperationSpec spec = Spec(OpKind::kReducescatter, ranks);
    const auto* at = static_cast<const char*>(input);
    for (const int64_t of_rank : counts) {
      spec.spans.push_back({at, output, of_rank});
      at += static_cast<size_t>(of_rank) * SizeOf(options.dtype);
    }
    spec.reduce = options;
    return Run(std::move(spec), meanwhile);
  }
  Status Alltoall(const std::vector<int>& ranks, const void* input,
                  const std::vector<int64_t>& send_bytes, void* output,
                  const std::vector<int64_t>& receive_bytes,
                  const Meanwhile& meanwhile = nullptr) {
    OperationSpec spec = Spec(OpKind::kAlltoall, ranks);
    spec.input = input;
    spec.output = output;
    spec.send = send_bytes;
    spec.receive = receive_bytes;
    return Run(std::move(spec), meanwhile);
  }

  // Whether the memory of a failed operation may still be written.
  bool memory_in_use() const { return memory_in_use_; }

 private:
  OperationSpec Spec(OpKind kind, const std::vector<int>& ranks) {
    OperationSpec spec;
    spec.kind = kind;
    spec.ranks = MembersOf(ranks);
    // The same number for the same ranks, different from that of all ranks.
    for (const int rank : ranks) spec.set = (spec.set * 31 + rank + 1) % 499;
    ++spec.set;
    if (numbers_.count(ranks) == 0) {
      for (Backend* backend : backends_) {
        static_cast<void>(backend->SetAdded(spec.set, ranks));
      }
    }
    spec.number = numbers_[ranks]++;
    return spec;
  }

  Status Run(OperationSpec spec, const Meanwhile& meanwhile) {
    std::unique_ptr<Operation> operation;
    Backend* const backend =
        *std::find_if(backends_.begin(), backends_.end() - 1,
                      [&](const Backend* one) { return one->Serves(spec); });
    TF_HVD_RETURN_IF_ERROR(backend->Make(std::move(spec), &operation));
    Poll poll;
    Status status;
    while (status.ok() && !poll.done) {
      poll = Poll();
      status = operation->Progress(/*budget_ns=*/20'000, &poll);
      if (status.ok() && meanwhile) status = meanwhile();
      if (!poll.moved) std::this_thread::yield();
    }
    if (!status.ok() && !operation->Abandon()) {
      static auto* const kept = new std::vector<std::unique_ptr<Operation>>;
      kept->push_back(std::move(operation));  // as the executor does
      memory_in_use_ = true;
    }
    return status;
  }

  const std::vector<Backend*> backends_;
  std::map<std::vector<int>, uint64_t> numbers_;
  bool memory_in_use_ = false;
};

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_RUNTIME_TRANSPORT_COLLECTIVES_H_
