// HorovodSize, HorovodRank, HorovodLocalRank, HorovodLocalSize: read from the
// default runtime; nothing is communicated.
#include <memory>

#include "kernels/collective_kernel.h"
#include "kernels/tf_adapters.h"
#include "kernels/tf_compat.h"
#include "runtime/c_api.h"
#include "runtime/runtime.h"

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

class SizeKernel final : public TopologyKernel {
 public:
  explicit SizeKernel(tf::OpKernelConstruction* ctx) : TopologyKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("process_set_id", &set_));
  }

 private:
  Status Read(const Runtime& runtime, int* value) const override {
    if (set_ == kWorldSet) {
      *value = runtime.topology().size;
      return Status::Ok();
    }
    *value = static_cast<int>(runtime.SetRanks(set_).size());
    return *value > 0 ? Status::Ok() : UnknownSet(set_);
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

int RankOf(const Topology& topology) { return topology.rank; }
int LocalRankOf(const Topology& topology) { return topology.LocalRank(); }
int LocalSizeOf(const Topology& topology) { return topology.LocalSize(); }

REGISTER_KERNEL_BUILDER(Name("HorovodSize").Device(tf::DEVICE_CPU), SizeKernel);
REGISTER_KERNEL_BUILDER(Name("HorovodRank").Device(tf::DEVICE_CPU),
                        NumberKernel<RankOf>);
REGISTER_KERNEL_BUILDER(Name("HorovodLocalRank").Device(tf::DEVICE_CPU),
                        NumberKernel<LocalRankOf>);
REGISTER_KERNEL_BUILDER(Name("HorovodLocalSize").Device(tf::DEVICE_CPU),
                        NumberKernel<LocalSizeOf>);

}  // namespace
}  // namespace tf_hvd
