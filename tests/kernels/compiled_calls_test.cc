// Calls of compiled steps on a CPU, with memory that XLA may free at any time.
#include "kernels/xla/compiled_calls.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/xla/compiled_call.h"
#include "tests/runtime/job.h"

namespace tf_hvd {
namespace {

// One rank's step; tensors are float32.
class Step {
 public:
  explicit Step(Rank* rank)
      : calls_(MakeCompiledCalls([rank](std::shared_ptr<Runtime>* runtime) {
          runtime->reset(rank->runtime(), [](Runtime*) {});
          return Status::Ok();
        })) {}

  // In place in `tensor`, which is also its ticket.
  void Start(const std::string& name, std::vector<float>* tensor,
             OpKind kind = OpKind::kAllreduce,
             std::vector<float>* output = nullptr) {
    CompiledCall call;
    call.name = name;
    call.request.kind = kind;
    call.request.compiled = true;
    const auto count = static_cast<int64_t>(tensor->size());
    call.request.tensors.push_back({DType::kFloat32, {count}});
    encoded_ = EncodeCall(call);
    Started started;
    started.call = encoded_;
    started.tensors.push_back({tensor->data(), count});
    if (output != nullptr) {
      started.outputs.push_back(
          {output->data(), static_cast<int64_t>(output->size())});
    }
    started.ticket = tensor->data();
    calls_->Start(started);
  }

  Status End(const std::vector<float>& tensor) {
    std::promise<Status> ended;
    End(tensor, [&ended](const Status& status) { ended.set_value(status); });
    return ended.get_future().get();
  }
  void End(const std::vector<float>& tensor, CompiledCalls::Ended ended) {
    calls_->End(tensor.data(), std::move(ended));
  }

 private:
  const std::unique_ptr<CompiledCalls> calls_;
  std::string encoded_;
};

// Calls `rest` when a call's end is reported to XLA, to run the rest of the
// step. Rank 0 waits for that end before rank 1 has made the call.
void RunRest(const std::function<void(Rank& rank)>& rest) {
  std::promise<void> waits;
  const auto when_waits = waits.get_future().share();
  Job job({2});
  job.Run([&](Rank& rank) {
    Step step(&rank);
    std::vector<float> a(1000, 1);
    if (rank.rank() == 1) when_waits.wait();
    step.Start("a", &a);
    std::promise<void> over;
    step.End(a, [&](const Status& status) {
      EXPECT_TRUE(status.ok());
      rest(rank);
      over.set_value();
    });
    if (rank.rank() == 0) waits.set_value();
    over.get_future().wait();
  });
}

// As on XLA's own threads, one of which may be faster: otherwise the ranks'
// weights would differ in denormals.
TEST(CompiledCalls, TheRestOfAStepFlushesDenormals) {
  RunRest([](Rank& rank) {
    if (rank.rank() == 1) return;  // perhaps on the test's own thread
    volatile float small = 1e-30f;
    EXPECT_EQ(small * 1e-10f, 0.0f);
  });
}

// The rest used to run on the thread that moves data and answers the other
// ranks.
TEST(CompiledCalls, TheRestOfAStepDelaysNoOtherCollective) {
  RunRest([](Rank& rank) {
    std::vector<float> b(100'000, 1);
    EXPECT_TRUE(rank.Allreduce("b", &b).status().ok());
  });
}

// Their memory used to be freed but still written to, and they were duplicated
// when the step ran again.
TEST(CompiledCalls, CallsOfAFailedStepContinueWithACopy) {
  std::promise<void> freed;
  const auto when_freed = freed.get_future().share();
  Job job({2});
  job.Run([&](Rank& rank) {
    Step step(&rank);
    const auto value = static_cast<float>(rank.rank() + 1);
    std::vector<float> bad(2 + static_cast<size_t>(rank.rank()), 1);
    auto other = std::make_unique<std::vector<float>>(1000, value);
    auto rows = std::make_unique<std::vector<float>>(10, value);
    auto all = std::make_unique<std::vector<float>>(20, -1);
    step.Start("bad", &bad);
    const auto start_others = [&] {
      step.Start("other", other.get());
      step.Start("rows", rows.get(), OpKind::kAllgather, all.get());
    };
    if (rank.rank() == 0) {
      start_others();
      EXPECT_FALSE(step.End(bad).ok());
      other = std::make_unique<std::vector<float>>(1000, 10 * value);
      rows = std::make_unique<std::vector<float>>(10, 10 * value);
      all = std::make_unique<std::vector<float>>(20, -1);
      freed.set_value();
      start_others();
      EXPECT_TRUE(step.End(*other).ok());
      EXPECT_TRUE(step.End(*rows).ok());
      EXPECT_EQ(*other, std::vector<float>(1000, 12));
      return;
    }
    EXPECT_FALSE(step.End(bad).ok());
    when_freed.wait();
    for (const float sum : {3.0f, 12.0f}) {
      other->assign(1000, value);
      start_others();
      EXPECT_TRUE(step.End(*other).ok());
      EXPECT_TRUE(step.End(*rows).ok());
      EXPECT_EQ(*other, std::vector<float>(1000, sum));
      EXPECT_EQ((*all)[0], sum - 2);
    }
  });
}

}  // namespace
}  // namespace tf_hvd
