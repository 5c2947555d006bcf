// Calls of a compiled step in XLA's GPU backend: it calls the handlers one
// after the other on one thread, with a stream and device memory, and enqueues
// its own kernels on that stream between them. Here on software GPUs, through
// XLA's C interface.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/xla/compiled_call.h"
#include "kernels/xla/compiled_calls.h"
#include "kernels/xla/handlers.h"
#include "tests/gpu/gpu_job.h"
#include "xla/ffi/api/c_api.h"

// The parts of XLA's API that the handlers use.
struct XLA_FFI_Error {
  std::string text;
};
struct XLA_FFI_ExecutionContext {
  void* stream = nullptr;
};

namespace tf_hvd {
namespace {

std::map<std::string, XLA_FFI_Handler*>& GpuHandlers() {
  static auto* const handlers = new std::map<std::string, XLA_FFI_Handler*>;
  return *handlers;
}

XLA_FFI_Api FakeXla() {
  XLA_FFI_Api api{};
  api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
  api.XLA_FFI_Error_Create = [](XLA_FFI_Error_Create_Args* args) {
    return new XLA_FFI_Error{args->message};
  };
  api.XLA_FFI_Stream_Get = [](XLA_FFI_Stream_Get_Args* args) {
    args->stream = args->ctx->stream;
    return static_cast<XLA_FFI_Error*>(nullptr);
  };
  api.XLA_FFI_Handler_Register = [](XLA_FFI_Handler_Register_Args* args) {
    // Handlers may not be captured in a CUDA graph.
    EXPECT_EQ(args->traits, 0u);
    if (std::string(args->platform.ptr, args->platform.len) == "CUDA") {
      GpuHandlers()[std::string(args->name.ptr, args->name.len)] =
          args->bundle.execute;
    }
    return static_cast<XLA_FFI_Error*>(nullptr);
  };
  return api;
}

// The handlers have one CompiledCalls per process, because a process is one
// rank. Here a thread is one rank.
class CallsOfThread final : public CompiledCalls {
 public:
  void NoteCompilation(const std::string& step) override {
    own->NoteCompilation(step);
  }
  void Start(const Started& started) override { own->Start(started); }
  void End(const void* ticket, Ended ended) override {
    own->End(ticket, std::move(ended));
  }
  Status EndOn(void* stream, const void* ticket) override {
    return own->EndOn(stream, ticket);
  }
  Status Number(std::string_view which, int32_t set, void* stream,
                int32_t* value) override {
    return own->Number(which, set, stream, value);
  }
  int64_t Fingerprint(const void* data, size_t bytes) override {
    return own->Fingerprint(data, bytes);
  }
  Status Verdict(std::string_view verdict, const bool* wrong, size_t count,
                 bool* passed) override {
    return own->Verdict(verdict, wrong, count, passed);
  }
  Status Ranks(int32_t set, int64_t* ranks, int64_t* place) override {
    return own->Ranks(set, ranks, place);
  }

  static thread_local CompiledCalls* own;
};

thread_local CompiledCalls* CallsOfThread::own = nullptr;

// The arguments of a handler's call.
class Frame {
 public:
  explicit Frame(const XLA_FFI_Api* api, CudaStream stream) {
    context_.stream = stream;
    frame_.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
    frame_.api = api;
    frame_.ctx = &context_;
    frame_.stage = XLA_FFI_ExecutionStage_EXECUTE;
  }

  void Argument(void* data, int64_t count, XLA_FFI_DataType type) {
    argument_types_.push_back(XLA_FFI_ArgType_BUFFER);
    arguments_.push_back(NewBuffer(data, {count}, type));
  }
  void Result(void* data, std::vector<int64_t> shape, XLA_FFI_DataType type) {
    result_types_.push_back(XLA_FFI_RetType_BUFFER);
    results_.push_back(NewBuffer(data, std::move(shape), type));
  }
  // Sorted by name.
  void Text(const char* name, const std::string& value) {
    texts_.push_back(value);
    spans_.push_back({texts_.back().data(), texts_.back().size()});
    Attribute(name, XLA_FFI_AttrType_STRING, &spans_.back());
  }
  void Number(const char* name, int64_t value) {
    numbers_.push_back(value);
    scalars_.push_back({XLA_FFI_DataType_S64, &numbers_.back()});
    Attribute(name, XLA_FFI_AttrType_SCALAR, &scalars_.back());
  }

  // Returns the handler's error; empty on success.
  std::string Call(const char* target) {
    frame_.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr,
                   static_cast<int64_t>(arguments_.size()),
                   argument_types_.data(), arguments_.data()};
    frame_.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr,
                   static_cast<int64_t>(results_.size()), result_types_.data(),
                   results_.data()};
    frame_.attrs = {XLA_FFI_Attrs_STRUCT_SIZE,
                    nullptr,
                    static_cast<int64_t>(attributes_.size()),
                    attribute_types_.data(),
                    names_.data(),
                    attributes_.data()};
    const std::unique_ptr<XLA_FFI_Error> error(
        GpuHandlers().at(target)(&frame_));
    return error == nullptr ? "" : error->text;
  }

 private:
  XLA_FFI_Buffer* NewBuffer(void* data, std::vector<int64_t> shape,
                            XLA_FFI_DataType type) {
    shapes_.push_back(std::move(shape));
    buffers_.push_back({XLA_FFI_Buffer_STRUCT_SIZE, nullptr, type, data,
                        static_cast<int64_t>(shapes_.back().size()),
                        shapes_.back().data()});
    return &buffers_.back();
  }
  void Attribute(const char* name, XLA_FFI_AttrType type, void* value) {
    name_spans_.push_back({name, std::string(name).size()});
    names_.push_back(&name_spans_.back());
    attribute_types_.push_back(type);
    attributes_.push_back(value);
  }

  XLA_FFI_ExecutionContext context_;
  XLA_FFI_CallFrame frame_{};
  std::deque<std::vector<int64_t>> shapes_;
  std::deque<XLA_FFI_Buffer> buffers_;
  std::vector<XLA_FFI_ArgType> argument_types_;
  std::vector<void*> arguments_;
  std::vector<XLA_FFI_RetType> result_types_;
  std::vector<void*> results_;
  std::deque<std::string> texts_;
  std::deque<XLA_FFI_ByteSpan> spans_;
  std::deque<int64_t> numbers_;
  std::deque<XLA_FFI_Scalar> scalars_;
  std::deque<XLA_FFI_ByteSpan> name_spans_;
  std::vector<XLA_FFI_AttrType> attribute_types_;
  std::vector<XLA_FFI_ByteSpan*> names_;
  std::vector<void*> attributes_;
};

// One rank's compiled step.
class Step {
 public:
  Step(const XLA_FFI_Api* api, GpuJob* job, Rank* rank)
      : api_(api),
        job_(job),
        gpu_(&job->gpu),
        rank_(rank),
        side_(job, rank),
        calls_(MakeCompiledCalls([rank](std::shared_ptr<Runtime>* runtime) {
          runtime->reset(rank->runtime(), [](Runtime*) {});
          return Status::Ok();
        })) {
    CallsOfThread::own = calls_.get();
  }
  ~Step() { CallsOfThread::own = nullptr; }

  Side& side() { return side_; }
  Rank& rank() { return *rank_; }
  CudaStream stream() const { return side_.stream(); }
  void Die() { LoopbackKill(job_->job.world(rank_->rank())); }

  static CompiledCall CallOf(OpKind kind, const std::string& name,
                             std::vector<int64_t> shape) {
    CompiledCall call;
    call.name = name;
    call.request.kind = kind;
    call.request.compiled = true;
    call.request.device = DeviceKind::kGpu;
    call.request.tensors.push_back({DType::kFloat32, std::move(shape)});
    return call;
  }

  static CompiledCall SumOf(const std::string& name, int64_t count) {
    return CallOf(OpKind::kAllreduce, name, {count});
  }

  // A collective that has started.
  struct Begun {
    struct Part {
      char* data = nullptr;
      int64_t count = 0;
      XLA_FFI_DataType type = XLA_FFI_DataType_F32;
    };
    std::vector<Part> tensors;
    std::vector<Part> outputs;  // none: in place
    char* ticket = nullptr;
  };

  template <typename T>
  Begun::Part PartOf(const std::vector<T>& values) {
    return {side_.Tensor(values), static_cast<int64_t>(values.size()),
            sizeof(T) == 2 ? XLA_FFI_DataType_S16 : XLA_FFI_DataType_F32};
  }

  Begun Start(const CompiledCall& call, const std::vector<float>& values,
              size_t outputs = 0) {
    Begun begun;
    begun.tensors.push_back(PartOf(values));
    if (outputs > 0) {
      begun.outputs.push_back(PartOf(std::vector<float>(outputs, -1)));
    }
    return Start(call, std::move(begun));
  }

  Begun Start(const CompiledCall& call, Begun begun) {
    begun.ticket = gpu_->NewMemory(rank_->rank(), 4, "a ticket");
    Frame frame(api_, stream());
    frame.Text("call", EncodeCall(call));
    frame.Number("steps", 0);
    frame.Number("tensors", static_cast<int64_t>(begun.tensors.size()));
    for (const auto& part : begun.tensors) {
      frame.Argument(part.data, part.count, part.type);
      frame.Result(part.data, {part.count}, part.type);
    }
    for (const auto& part : begun.outputs) {
      frame.Result(part.data, {part.count}, part.type);
    }
    frame.Result(begun.ticket, {}, XLA_FFI_DataType_S32);
    EXPECT_EQ(frame.Call(kStartTarget), "");
    return begun;
  }

  std::string End(const Begun& begun) {
    Frame frame(api_, stream());
    for (const auto* parts : {&begun.tensors, &begun.outputs}) {
      for (const auto& part : *parts) {
        frame.Argument(part.data, part.count, part.type);
      }
    }
    frame.Argument(begun.ticket, 1, XLA_FFI_DataType_S32);
    return frame.Call(kEndTarget);
  }

  // XLA no longer uses the memory.
  void Free(const Begun& begun) {
    for (const auto* parts : {&begun.tensors, &begun.outputs}) {
      for (const auto& part : *parts) gpu_->FreeOn(stream(), part.data);
    }
  }

  // The stream stops here while `open` is false.
  void Hold(const std::atomic<bool>* open) {
    const std::lock_guard<std::mutex> lock(gpu_->mutex());
    gpu_->Put(stream(), {"a slow operation",
                         [open] { return open->load(); },
                         [](CUstream_st*) {},
                         {}});
  }

  // The data that XLA's next kernel reads, no matter when the stream gets
  // there. The end of a call does not wait for it.
  template <typename T = float>
  std::vector<T> Result(const Begun& begun, size_t which = 0) {
    const auto& part =
        (begun.outputs.empty() ? begun.tensors : begun.outputs)[which];
    const auto raw = gpu_->Read(stream(), part.data,
                                static_cast<size_t>(part.count) * sizeof(T));
    std::shared_ptr<GpuEvent> event;
    EXPECT_TRUE(side_.Ready(&event).ok());
    for (bool fired = false; !fired; std::this_thread::yield()) {
      gpu_->Settle();
      EXPECT_TRUE(event->device()->HasFired(*event, &fired).ok());
    }
    std::vector<T> values(static_cast<size_t>(part.count));
    std::memcpy(values.data(), raw->data(), raw->size());
    return values;
  }

  Frame NewFrame() { return Frame(api_, stream()); }

 private:
  const XLA_FFI_Api* const api_;
  GpuJob* const job_;
  SoftwareGpu* const gpu_;
  Rank* const rank_;
  Side side_;
  const std::unique_ptr<CompiledCalls> calls_;
};

// With NCCL, and through pinned memory, where the host does the last part.
class CompiledStepsOnGpus : public ::testing::TestWithParam<bool> {
 protected:
  CompiledStepsOnGpus() : api_(FakeXla()) {
    static CallsOfThread calls;
    EXPECT_EQ(RegisterHandlers(&api_, &calls), "");
  }

  void Run(int ranks, uint64_t seed,
           const std::function<void(Step&, int)>& fn) {
    GpuJob job(ranks, seed, GetParam());
    job.job.Run([&](Rank& rank) {
      Step step(&api_, &job, &rank);
      fn(step, rank.rank());
    });
    job.ExpectNoFaults();
  }

  // For several orders of the devices' work.
  void RunOften(int ranks, const std::function<void(Step&, int)>& fn) {
    for (uint64_t seed = 1; seed <= 10; ++seed) Run(ranks, seed, fn);
  }

  const XLA_FFI_Api api_;
};

TEST_P(CompiledStepsOnGpus, BucketsAreSentTogether) {
  RunOften(2, [](Step& step, int rank) {
    const auto mine = static_cast<float>(rank + 1);
    const auto call = [](const char* name, int64_t count) {
      return Step::SumOf(name, count);
    };
    const auto a = step.Start(call("a", 3000), std::vector<float>(3000, mine));
    const auto b = step.Start(call("b", 7), std::vector<float>(7, 10 * mine));
    const auto c = step.Start(call("c", 1), {mine});
    EXPECT_EQ(step.End(b), "");
    EXPECT_EQ(step.Result(b), std::vector<float>(7, 30));
    EXPECT_EQ(step.End(a), "");
    EXPECT_EQ(step.End(c), "");
    EXPECT_EQ(step.Result(a), std::vector<float>(3000, 3));
    EXPECT_EQ(step.Result(c), std::vector<float>(1, 3));
    // Repeat the same call, as in a loop.
    const auto again = step.Start(call("c", 1), {mine});
    EXPECT_EQ(step.End(again), "");
    EXPECT_EQ(step.Result(again), std::vector<float>(1, 3));
  });
}

// The end returns when the remaining work is enqueued on a stream, and then the
// same call may be made again, as in a loop. This used to fail as a duplicate
// until the host had seen the first call end.
TEST_P(CompiledStepsOnGpus, TheHostDoesNotWaitForTheDevice) {
  if (!GetParam()) GTEST_SKIP() << "the host moves the data";
  RunOften(2, [](Step& step, int rank) {
    std::atomic<bool> open{false};
    step.Hold(&open);
    std::vector<Step::Begun> all;
    for (int turn = 0; turn < 3; ++turn) {
      all.push_back(
          step.Start(Step::SumOf("loop", 2),
                     {static_cast<float>(rank), static_cast<float>(turn)}));
      EXPECT_EQ(step.End(all.back()), "");
    }
    open = true;
    for (size_t turn = 0; turn < all.size(); ++turn) {
      EXPECT_EQ(step.Result(all[turn]),
                (std::vector<float>{1, 2 * static_cast<float>(turn)}));
    }
  });
}

// Two operations, the first of which NCCL does not support: the end is that of
// the last.
TEST_P(CompiledStepsOnGpus, AGroupOfTypesEndsWithItsLast) {
  RunOften(2, [](Step& step, int rank) {
    CompiledCall call = Step::SumOf("group", 3);
    call.request.tensors = {
        {DType::kFloat32, {3}}, {DType::kInt16, {2}}, {DType::kFloat32, {1}}};
    const auto mine = static_cast<int16_t>(rank + 1);
    Step::Begun begun;
    begun.tensors.push_back(step.PartOf(std::vector<float>(3, mine)));
    begun.tensors.push_back(step.PartOf(std::vector<int16_t>(2, mine)));
    begun.tensors.push_back(step.PartOf(std::vector<float>(1, 10 * mine)));
    begun = step.Start(call, std::move(begun));
    EXPECT_EQ(step.End(begun), "");
    EXPECT_EQ(step.Result(begun, 0), std::vector<float>(3, 3));
    EXPECT_EQ(step.Result<int16_t>(begun, 1), std::vector<int16_t>(2, 3));
    EXPECT_EQ(step.Result(begun, 2), std::vector<float>(1, 30));
  });
}

// XLA frees the memory of all calls of a step when one fails. The other ranks
// wait for calls that have been made.
TEST_P(CompiledStepsOnGpus, CallsOfAFailedStepContinueWithACopy) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    std::promise<void> freed;
    const auto when_freed = freed.get_future().share();
    Run(2, seed, [&](Step& step, int rank) {
      const auto value = static_cast<float>(rank + 1);
      const auto call = Step::SumOf("other", 500);
      const std::vector<float> values(500, value);
      const int64_t count = 2 + rank;
      const auto bad = [&] {
        return step.Start(Step::SumOf("bad", count),
                          std::vector<float>(static_cast<size_t>(count), 1));
      };
      if (rank == 0) {
        const auto failed = bad();
        const auto other = step.Start(call, values);
        EXPECT_NE(step.End(failed), "");
        step.Free(failed);
        step.Free(other);
        freed.set_value();
      } else {
        EXPECT_NE(step.End(bad()), "");
        when_freed.wait();
        const auto other = step.Start(call, values);
        EXPECT_EQ(step.End(other), "");
        EXPECT_EQ(step.Result(other), std::vector<float>(500, 3));
      }
      // Rank 0 repeats the step, and is one call ahead.
      const auto again = step.Start(call, values);
      EXPECT_EQ(step.End(again), "");
      EXPECT_EQ(step.Result(again), std::vector<float>(500, 3));
    });
  }
}

TEST_P(CompiledStepsOnGpus, ABarrierHasNoDevice) {
  Run(2, 14, [](Step& step, int) {
    CompiledCall call;
    call.name = "all";
    call.request.kind = OpKind::kBarrier;
    call.request.compiled = true;
    EXPECT_EQ(step.End(step.Start(call, Step::Begun())), "");
  });
}

TEST_P(CompiledStepsOnGpus, EveryCollective) {
  Run(3, 11, [](Step& step, int rank) {
    const auto mine = static_cast<float>(rank);
    CompiledCall sent = Step::CallOf(OpKind::kBroadcast, "sent", {2});
    sent.request.root = 1;
    const auto broadcast = step.Start(sent, {mine, mine + 10});
    const auto gathered = step.Start(
        Step::CallOf(OpKind::kAllgather, "rows", {1, 2}), {mine, -mine}, 6);
    const auto exchanged =
        step.Start(Step::CallOf(OpKind::kAlltoall, "parts", {3}),
                   {mine, mine + 1, mine + 2}, 3);
    const auto scattered = step.Start(
        Step::CallOf(OpKind::kReducescatter, "sums", {3}), {1, 2, mine}, 1);
    for (const auto& one : {scattered, exchanged, gathered, broadcast}) {
      EXPECT_EQ(step.End(one), "");
    }
    EXPECT_EQ(step.Result(broadcast), (std::vector<float>{1, 11}));
    EXPECT_EQ(step.Result(gathered),
              (std::vector<float>{0, -0.0f, 1, -1, 2, -2}));
    EXPECT_EQ(step.Result(exchanged),
              (std::vector<float>{mine, 1 + mine, 2 + mine}));
    EXPECT_EQ(step.Result(scattered), std::vector<float>{rank == 0   ? 3.0f
                                                         : rank == 1 ? 6.0f
                                                                     : 3.0f});
  });
}

TEST_P(CompiledStepsOnGpus, RankMismatchesAreReportedAtTheEnd) {
  Run(2, 12, [](Step& step, int rank) {
    const int64_t count = 2 + rank;
    const auto bad =
        step.Start(Step::SumOf("g", count),
                   std::vector<float>(static_cast<size_t>(count), 1));
    const std::string error = step.End(bad);
    EXPECT_NE(error.find("mismatch in allreduce 'g'"), std::string::npos)
        << error;
    const auto good = step.Start(Step::SumOf("g", 2), std::vector<float>(2, 1));
    EXPECT_EQ(step.End(good), "");
    EXPECT_EQ(step.Result(good), std::vector<float>(2, 2));
  });
}

// The ends of its calls report the death.
TEST_P(CompiledStepsOnGpus, ADeadRankIsReported) {
  std::atomic<int> made{0};
  Run(3, 15, [&](Step& step, int rank) {
    const auto call = [](const char* name) { return Step::SumOf(name, 100); };
    const std::vector<float> values(100, 1);
    const auto first = step.Start(call("first"), values);
    EXPECT_EQ(step.End(first), "");
    EXPECT_EQ(step.Result(first), std::vector<float>(100, 3));
    ++made;
    while (made < 3) std::this_thread::yield();
    if (rank == 2) return step.Die();
    for (const char* name : {"second", "third"}) {
      const std::string error = step.End(step.Start(call(name), values));
      EXPECT_NE(error.find("rank 2 (node0) died"), std::string::npos) << error;
    }
  });
}

TEST_P(CompiledStepsOnGpus, ARankThatHasJoinedGivesZeros) {
  RunOften(3, [](Step& step, int rank) {
    if (rank == 1) {
      EXPECT_TRUE(step.rank().Join().status().ok());
      return;
    }
    const auto mine = static_cast<float>(rank + 1);
    std::vector<Step::Begun> sums;
    for (const char* name : {"a", "b"}) {
      sums.push_back(
          step.Start(Step::SumOf(name, 300), std::vector<float>(300, mine)));
    }
    for (const auto& sum : sums) {
      EXPECT_EQ(step.End(sum), "");
      EXPECT_EQ(step.Result(sum), std::vector<float>(300, 4));
    }
    EXPECT_TRUE(step.rank().Join().status().ok());
  });
}

TEST_P(CompiledStepsOnGpus, ASetNextToTheWorld) {
  RunOften(3, [](Step& step, int rank) {
    const int32_t set = step.rank().AddSet("ends", {0, 2}).value();
    const std::vector<float> mine(50, static_cast<float>(rank + 1));
    const auto all = step.Start(Step::SumOf("sum", 50), mine);
    if (rank != 1) {
      CompiledCall call = Step::SumOf("sum", 50);
      call.set = set;
      const auto ends = step.Start(call, mine);
      EXPECT_EQ(step.End(ends), "");
      EXPECT_EQ(step.Result(ends), std::vector<float>(50, 4));
    }
    EXPECT_EQ(step.End(all), "");
    EXPECT_EQ(step.Result(all), std::vector<float>(50, 6));
  });
}

TEST_P(CompiledStepsOnGpus, Numbers) {
  Run(2, 13, [](Step& step, int rank) {
    char* const number = step.side().Tensor(std::vector<int32_t>{-1});
    Frame asked = step.NewFrame();
    asked.Text("op", "HorovodRank");
    asked.Number("set", kWorldSet);
    asked.Result(number, {}, XLA_FFI_DataType_S32);
    EXPECT_EQ(asked.Call(kNumberTarget), "");
    EXPECT_EQ(step.side().Values<int32_t>(number, 1),
              std::vector<int32_t>{rank});
  });
}

INSTANTIATE_TEST_SUITE_P(, CompiledStepsOnGpus, ::testing::Bool(),
                         [](const ::testing::TestParamInfo<bool>& with_nccl) {
                           return std::string(with_nccl.param
                                                  ? "ByNccl"
                                                  : "ThroughPinnedMemory");
                         });

}  // namespace
}  // namespace tf_hvd
