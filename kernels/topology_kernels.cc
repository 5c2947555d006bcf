// HorovodSize, HorovodRank and the other numbers of the job: read from the
// default runtime; nothing is communicated.
#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/collective_kernel.h"
#include "kernels/tf_adapters.h"
#include "kernels/tf_compat.h"
#include "runtime/api/c_api.h"
#include "runtime/api/runtime.h"

namespace tf_hvd {
namespace {

// Any thread.
class TopologyKernel : public tf::OpKernel {
 public:
  explicit TopologyKernel(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {}

  void Compute(tf::OpKernelContext* ctx) final {
    const std::shared_ptr<Runtime> runtime = DefaultRuntime();
    if (runtime == nullptr) {
      ctx->SetStatus(ToTensorFlow(FailedPrecondition(NotInitializedText())));
      return;
    }
    int value = 0;
    OP_REQUIRES_OK(ctx, ToTensorFlow(Read(*runtime, &value)));
    tf::Tensor* output = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, tf::TensorShape(), &output));
    output->scalar<int32_t>()() = value;
  }

 protected:
  virtual Status Read(const Runtime& runtime, int* value) const = 0;
};

// A number that follows from this rank and the ranks of a process set.
template <int (*Get)(int rank, const std::vector<int>& ranks)>
class SetKernel final : public TopologyKernel {
 public:
  explicit SetKernel(tf::OpKernelConstruction* ctx) : TopologyKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("process_set_id", &set_));
  }

 private:
  Status Read(const Runtime& runtime, int* value) const override {
    const SetMembers members = runtime.SetRanks(set_);
    if (members == nullptr) return UnknownSet(set_);
    *value = Get(runtime.topology().rank, *members);
    return Status::Ok();
  }

  int32_t set_ = kWorldSet;
};

// A number that the topology has; Get is one of its functions.
template <int (*Get)(const Topology&)>
class NumberKernel final : public TopologyKernel {
 public:
  using TopologyKernel::TopologyKernel;

 private:
  Status Read(const Runtime& runtime, int* value) const override {
    *value = Get(runtime.topology());
    return Status::Ok();
  }
};

int SizeOfSet(int, const std::vector<int>& ranks) {
  return static_cast<int>(ranks.size());
}
int Includes(int rank, const std::vector<int>& ranks) {
  return std::binary_search(ranks.begin(), ranks.end(), rank) ? 1 : 0;
}
int RankOf(const Topology& topology) { return topology.rank; }
int LocalRankOf(const Topology& topology) { return topology.LocalRank(); }
int LocalSizeOf(const Topology& topology) { return topology.LocalSize(); }
int CrossRankOf(const Topology& topology) { return topology.CrossRank(); }
int CrossSizeOf(const Topology& topology) { return topology.CrossSize(); }

REGISTER_KERNEL_BUILDER(Name("HorovodSize").Device(tf::DEVICE_CPU),
                        SetKernel<SizeOfSet>);
REGISTER_KERNEL_BUILDER(
    Name("HorovodProcessSetIncluded").Device(tf::DEVICE_CPU),
    SetKernel<Includes>);
REGISTER_KERNEL_BUILDER(Name("HorovodRank").Device(tf::DEVICE_CPU),
                        NumberKernel<RankOf>);
REGISTER_KERNEL_BUILDER(Name("HorovodLocalRank").Device(tf::DEVICE_CPU),
                        NumberKernel<LocalRankOf>);
REGISTER_KERNEL_BUILDER(Name("HorovodLocalSize").Device(tf::DEVICE_CPU),
                        NumberKernel<LocalSizeOf>);
REGISTER_KERNEL_BUILDER(Name("HorovodCrossRank").Device(tf::DEVICE_CPU),
                        NumberKernel<CrossRankOf>);
REGISTER_KERNEL_BUILDER(Name("HorovodCrossSize").Device(tf::DEVICE_CPU),
                        NumberKernel<CrossSizeOf>);

}  // namespace
}  // namespace tf_hvd
