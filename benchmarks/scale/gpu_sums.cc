#include "benchmarks/scale/gpu_sums.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/types.h"

namespace tf_hvd::scale {
namespace {

class GpuSum final : public Operation {
 public:
  explicit GpuSum(std::shared_ptr<bool> done) : done_(std::move(done)) {}

  Status Progress(int64_t, Poll* poll) override {
    poll->done = *done_;
    poll->computing = !*done_;
    return Status::Ok();
  }
  bool Abandon() override { return true; }

 private:
  const std::shared_ptr<bool> done_;
};

}  // namespace

void GpuStream::Call(uint64_t number, double bytes, size_t tensors,
                     size_t launches, std::function<void()> done) {
  const double packing = tensors < 2
                             ? 0
                             : static_cast<double>(launches) * pack_.launch_ns +
                                   2 * bytes * pack_.byte_ns;
  Calls& calls = calls_[number];
  ++calls.ranks;
  calls.begin_ns = std::max(calls.begin_ns, static_cast<double>(time_->now()));
  calls.done.push_back(std::move(done));
  if (calls.ranks < network_->ranks()) return;
  const double takes = algorithm_ == GpuAlgorithm::kRing
                           ? network_->RingNs(bytes)
                           : network_->TreesNs(bytes);
  free_ns_ = std::max(free_ns_, calls.begin_ns) + takes + 2 * packing;
  time_->At(WholeNs(free_ns_), [all = std::move(calls.done)] {
    for (const auto& each : all) each();
  });
  calls_.erase(number);
}

Status GpuSums::Make(OperationSpec spec,
                     std::unique_ptr<Operation>* operation) {
  int64_t elements = 0;
  for (const Span& span : spec.spans) elements += span.count;
  const double bytes = static_cast<double>(elements) *
                       static_cast<double>(SizeOf(spec.reduce.dtype));
  auto done = std::make_shared<bool>(false);
  *operation = std::make_unique<GpuSum>(done);
  stream_->Call(spec.number, bytes, spec.spans.size(), 1,
                [this, done = std::move(done)] {
                  *done = true;
                  wake_(rank_);
                });
  return Status::Ok();
}

}  // namespace tf_hvd::scale
