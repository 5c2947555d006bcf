#include "tests/gpu/training_step.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "runtime/transport/gpu/devices.h"
#include "runtime/transport/loopback/loopback.h"
#include "tests/gpu/device_rank.h"

namespace tf_hvd {
namespace {

// Size of the staging memory; less than the last bucket.
constexpr size_t kStagingBytes = size_t{64} << 10;

// Elements of each gradient, by bucket.
const std::vector<std::vector<int64_t>>& Buckets() {
  static const std::vector<std::vector<int64_t>> buckets = {
      {1000, 10}, {2304, 32, 32, 32}, {4096}, {3, 9216, 64, 18432, 1}};
  return buckets;
}

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()),
          values.size() * sizeof(T)};
}

std::string Floats(int64_t count, float value) {
  return Bytes(std::vector<float>(static_cast<size_t>(count), value));
}

// One rank's tensors and its steps.
class Training {
 public:
  explicit Training(DeviceRank* rank) : rank_(rank) {}

  Status Prepare() {
    for (const auto& counts : Buckets()) {
      for (const int64_t count : counts) largest_ = std::max(largest_, count);
    }
    const auto value = static_cast<float>(rank_->rank() + 1);
    TF_HVD_RETURN_IF_ERROR(New(Floats(largest_, value), &backward_));
    for (const auto& counts : Buckets()) {
      std::vector<DeviceTensor>& bucket = buckets_.emplace_back();
      for (const int64_t count : counts) {
        TF_HVD_RETURN_IF_ERROR(NewTensor(count, count, &bucket.emplace_back()));
      }
    }
    const int64_t mine = rank_->rank() + 1;
    const int64_t all = int64_t{rank_->size()} * (rank_->size() + 1) / 2;
    TF_HVD_RETURN_IF_ERROR(NewTensor(mine, all, &rows_));
    TF_HVD_RETURN_IF_ERROR(NewTensor(100, 100, &weights_));
    return Status::Ok();
  }

  Status Step(int number) {
    std::vector<Reply> replies;
    // As in the backward pass: the first computed gradients are reduced first.
    for (size_t i = 0; i < buckets_.size(); ++i) {
      for (const DeviceTensor& tensor : buckets_[i]) {
        TF_HVD_RETURN_IF_ERROR(Make(tensor));
      }
      replies.push_back(rank_->Allreduce("bucket" + std::to_string(i),
                                         DType::kFloat32, buckets_[i],
                                         ReduceOp::kAverage));
    }
    TF_HVD_RETURN_IF_ERROR(Make(rows_));
    replies.push_back(rank_->Allgather("rows", DType::kFloat32, rows_));
    TF_HVD_RETURN_IF_ERROR(Make(weights_));
    replies.push_back(
        rank_->Broadcast("weights", DType::kFloat32, weights_, 0));
    for (Reply& reply : replies) {
      TF_HVD_RETURN_IF_ERROR(
          DeviceRank::Wait(std::move(reply), "step " + std::to_string(number)));
    }
    return Status::Ok();
  }

  // Checks the results of the last step.
  Status Check() {
    const auto ranks = static_cast<float>(rank_->size());
    for (const auto& bucket : buckets_) {
      for (const DeviceTensor& tensor : bucket) {
        TF_HVD_RETURN_IF_ERROR(
            Expect(tensor, Floats(tensor.count, (ranks + 1) / 2), "average"));
      }
    }
    std::vector<float> rows;
    for (int rank = 1; rank <= rank_->size(); ++rank) {
      rows.insert(rows.end(), static_cast<size_t>(rank),
                  static_cast<float>(rank));
    }
    TF_HVD_RETURN_IF_ERROR(Expect(rows_, Bytes(rows), "gathered rows"));
    return Expect(weights_, Floats(weights_.count, 1), "broadcast");
  }

 private:
  Status New(const std::string& bytes, char** memory) {
    TF_HVD_RETURN_IF_ERROR(rank_->side()->Allocate(bytes.size(), memory));
    return rank_->side()->Upload(*memory, bytes.data(), bytes.size());
  }

  Status NewTensor(int64_t input, int64_t output, DeviceTensor* tensor) {
    char* made = nullptr;
    TF_HVD_RETURN_IF_ERROR(New(Floats(input, -1), &made));
    TF_HVD_RETURN_IF_ERROR(New(Floats(output, -2), &tensor->output));
    tensor->input = made;
    tensor->count = input;
    return Status::Ok();
  }

  Status Make(const DeviceTensor& tensor) {
    return rank_->side()->device()->Copy(
        rank_->side()->stream(), const_cast<char*>(tensor.input), backward_,
        static_cast<size_t>(tensor.count) * sizeof(float));
  }

  Status Expect(const DeviceTensor& tensor, const std::string& expected,
                const std::string& what) {
    std::string got(expected.size(), '\0');
    TF_HVD_RETURN_IF_ERROR(
        rank_->side()->Download(tensor.output, &got[0], got.size()));
    return got == expected ? Status::Ok() : Internal(what + " is wrong");
  }

  DeviceRank* const rank_;
  int64_t largest_ = 0;
  char* backward_ = nullptr;
  std::vector<std::vector<DeviceTensor>> buckets_;
  DeviceTensor rows_;
  DeviceTensor weights_;
};

Status Train(const StepPlan& plan, DeviceRank* rank, StepCalls* calls) {
  const CallCounts start = CountedCalls::Of(rank->rank());
  Training training(rank);
  TF_HVD_RETURN_IF_ERROR(training.Prepare());
  for (int step = 0; step < plan.warmup; ++step) {
    TF_HVD_RETURN_IF_ERROR(training.Step(step));
  }
  const CallCounts before = CountedCalls::Of(rank->rank());
  for (int step = 0; step < plan.steps; ++step) {
    TF_HVD_RETURN_IF_ERROR(training.Step(plan.warmup + step));
  }
  calls->warmup = before - start;
  calls->steps = CountedCalls::Of(rank->rank()) - before;
  return training.Check();
}

}  // namespace

Status CountSteps(const StepPlan& plan, const CudaApi* cuda,
                  const NcclApi* nccl, std::vector<StepCalls>* calls) {
  calls->assign(static_cast<size_t>(plan.ranks), {});
  const CudaApi* const counted = CountedCalls::Cuda(cuda);
  LoopbackOptions options;
  options.nodes = {plan.ranks};
  options.gpu = [&](int rank) {
    GpuAccess access;
    access.devices = std::make_shared<GpuDevices>(counted, rank);
    access.nccl = CountedCalls::Nccl(nccl);
    access.no_nccl = "it was not asked for";
    access.options.staging_bytes = kStagingBytes;
    return access;
  };
  return RunDeviceRanks(
      MakeLoopback(options), cuda, [](int rank) { return rank; },
      [&](DeviceRank& rank) {
        TF_HVD_RETURN_IF_ERROR(
            Train(plan, &rank, &(*calls)[static_cast<size_t>(rank.rank())]));
        return DeviceRank::Wait(rank.Barrier("end"), "end");
      });
}

}  // namespace tf_hvd
