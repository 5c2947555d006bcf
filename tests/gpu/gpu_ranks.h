// Ranks with a software GPU each, all on one thread: everything depends only on
// the seed. Each rank also has TensorFlow's side: a stream that computes late,
// and memory that is reused as soon as possible.
#ifndef TF_HVD_TESTS_GPU_GPU_RANKS_H_
#define TF_HVD_TESTS_GPU_GPU_RANKS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/transport/gpu/backend.h"
#include "runtime/transport/gpu/devices.h"
#include "runtime/transport/gpu/mpi_communicator.h"
#include "runtime/transport/gpu/pinned_backend.h"
#include "runtime/transport/loopback/point_to_point.h"
#include "runtime/transport/p2p/backend.h"
#include "tests/gpu/software_gpu.h"
#include "tests/gpu/software_mpi.h"
#include "tests/gpu/software_nccl.h"

namespace tf_hvd {

// One rank's tensors: the bytes of each.
using Tensors = std::vector<std::vector<char>>;

class GpuRank {
 public:
  GpuRank(SoftwareGpu* gpu, const NcclApi* nccl,
          const std::shared_ptr<MailRoom>& mail, int rank, int ranks,
          const GpuOptions& options, std::atomic<int>* rings)
      : gpu_(gpu),
        rank_(rank),
        rings_(rings),
        link_(mail, rank),
        p2p_(&link_, rank),
        devices_(SoftwareGpu::Cuda(), rank),
        backend_(&devices_, nccl, rank, Names(ranks), {&p2p_},
                 WithBell(options, rings)),
        pinned_(&devices_, &p2p_, rank),
        compute_(gpu->NewStream(rank)) {}

  // A collective with spans made of `inputs` and of memory for outputs with
  // these sizes in bytes.
  struct Call {
    OperationSpec spec;
    Tensors inputs;
    std::vector<size_t> outputs;
    bool in_place = false;  // same number of inputs and outputs, of equal sizes
    // Stores the addresses in the spec.
    std::function<void(const std::vector<const char*>& inputs,
                       const std::vector<char*>& outputs, OperationSpec* spec)>
        point;
    Tensors expected;
    std::string what;
    bool joined = false;  // takes part without a tensor
  };

  void Make(Call call) {
    Running& one = running_.emplace_back();
    one.call = std::move(call);
    OperationSpec& spec = one.call.spec;
    spec.memory.kind = MemoryKind::kDevice;
    if (!one.call.joined) {
      spec.memory.device = rank_;
      Lay(&one);
      std::shared_ptr<GpuDevice> device;
      Expect(devices_.OfStream(compute_, &device), one);
      Expect(device->Record(compute_, &spec.memory.ready), one);
    }
    one.call.point(one.inputs, one.outputs, &spec);
    one.rings = backend_.Serves(spec);
    Backend* const backend =
        one.rings ? static_cast<Backend*>(&backend_) : &pinned_;
    EXPECT_TRUE(backend->Serves(spec));
    Expect(backend->Make(spec, &one.operation), one);
    spec.memory.ready.reset();
  }

  // Continues everything in progress.
  void Move(std::mt19937_64* random) {
    for (auto one = running_.begin(); one != running_.end();) {
      bool done = false;
      if ((*random)() % 3 != 0) done = Look(&*one);
      one = done ? running_.erase(one) : std::next(one);
    }
  }

  bool idle() const { return running_.empty(); }
  size_t under_way() const { return running_.size(); }

  // Checks the expected results, after all streams have run to their end.
  void CheckResults() {
    for (const Result& result : results_) {
      EXPECT_TRUE(*result.got == result.expected) << result.what;
    }
    results_.clear();
    EXPECT_EQ(*rings_, ended_)
        << "the bell was not rung for an ended operation";
  }

  GpuBackend* backend() { return &backend_; }

 private:
  struct Running {
    Call call;
    std::vector<const char*> inputs;
    std::vector<char*> outputs;
    std::unique_ptr<Operation> operation;
    bool rings = false;  // when it ends
  };
  struct Result {
    std::shared_ptr<std::vector<char>> got;
    std::vector<char> expected;
    std::string what;
  };

  static std::vector<std::string> Names(int ranks) {
    std::vector<std::string> names;
    for (int rank = 0; rank < ranks; ++rank) {
      names.push_back("rank " + std::to_string(rank));
    }
    return names;
  }

  static GpuOptions WithBell(GpuOptions options, std::atomic<int>* rings) {
    options.ring = {[](void* data) { ++*static_cast<std::atomic<int>*>(data); },
                    rings};
    return options;
  }

  static void Expect(const Status& status, const Running& one) {
    EXPECT_TRUE(status.ok()) << one.call.what << ": " << status.message();
  }

  // The inputs are computed late; the outputs' memory had other contents until
  // a moment ago.
  void Lay(Running* one) {
    Call& call = one->call;
    for (const std::vector<char>& input : call.inputs) {
      char* const memory = gpu_->NewMemory(rank_, input.size(), "an input");
      gpu_->Write(compute_, memory, input);
      one->inputs.push_back(memory);
    }
    for (size_t i = 0; i < call.outputs.size(); ++i) {
      if (call.in_place) {
        one->outputs.push_back(const_cast<char*>(one->inputs[i]));
        continue;
      }
      char* const memory = gpu_->NewMemory(rank_, call.outputs[i], "an output");
      gpu_->Write(compute_, memory, std::vector<char>(call.outputs[i], 0x55));
      one->outputs.push_back(memory);
    }
  }

  bool Look(Running* one) {
    Poll poll;
    const int rings = *rings_;
    const Status status = one->operation->Progress(100'000, &poll);
    Expect(status, *one);
    if (!status.ok()) return true;  // it must not be called again
    const bool oldest =
        one->rings &&
        one == &*std::find_if(running_.begin(), running_.end(),
                              [](const Running& other) { return other.rings; });
    if (!poll.done && oldest) {
      EXPECT_LE(rings, ended_)
          << "the bell was rung for an operation that has not ended";
    }
    if (!poll.done) return false;
    ended_ += one->rings ? 1 : 0;
    one->operation.reset();
    // As in TensorFlow: the next kernel reads the outputs, and the inputs'
    // memory is reused.
    for (size_t i = 0; i < one->outputs.size(); ++i) {
      const size_t bytes = one->call.outputs[i];
      results_.push_back({gpu_->Read(compute_, one->outputs[i], bytes),
                          one->call.expected[i], one->call.what});
      gpu_->Write(compute_, one->outputs[i], std::vector<char>(bytes, 0x66));
    }
    for (size_t i = 0; i < one->inputs.size(); ++i) {
      const std::vector<char>& input = one->call.inputs[i];
      if (!one->call.in_place) {
        results_.push_back({gpu_->Read(compute_, one->inputs[i], input.size()),
                            input, one->call.what + ": its input"});
      }
      gpu_->Write(compute_, const_cast<char*>(one->inputs[i]),
                  std::vector<char>(input.size(), 0x77));
    }
    return true;
  }

  SoftwareGpu* const gpu_;
  const int rank_;
  std::atomic<int>* const rings_;
  int ended_ = 0;  // operations that ring
  LoopbackPointToPoint link_;
  P2PBackend p2p_;
  GpuDevices devices_;
  GpuBackend backend_;
  PinnedBackend pinned_;
  const CudaStream compute_;
  std::list<Running> running_;
  std::vector<Result> results_;
};

// Transports of a job's ranks, in addition to the host's memory.
enum class GpuWay { kNccl, kMpi, kBoth, kNone };

// The ranks of a job, on the same machine.
class GpuRanks {
 public:
  GpuRanks(int ranks, uint64_t seed, GpuWay way = GpuWay::kNccl,
           GpuOptions options = {})
      : gpu(ranks, seed), nccl(&gpu), mpi(&gpu, ranks) {
    const auto mail = std::make_shared<MailRoom>(ranks);
    const bool has_nccl = way == GpuWay::kNccl || way == GpuWay::kBoth;
    for (int rank = 0; rank < ranks; ++rank) {
      if (way == GpuWay::kMpi || way == GpuWay::kBoth) {
        options.connect_by_mpi = [api = mpi.Api(rank), rank,
                                  ranks](std::shared_ptr<GpuDevice> device) {
          return std::make_shared<MpiCommunicator>(
              api, MpiHandle{nullptr}, rank, ranks, std::move(device));
        };
      }
      all.push_back(std::make_unique<GpuRank>(
          &gpu, has_nccl ? SoftwareNccl::Api() : nullptr, mail, rank, ranks,
          options, &rings.emplace_back(0)));
    }
  }

  // Continues until nothing is in progress.
  void Finish(std::mt19937_64* random) {
    for (int looks = 0; looks < 100'000; ++looks) {
      bool idle = true;
      for (const auto& rank : all) {
        rank->Move(random);
        idle = idle && rank->idle();
      }
      if (idle) break;
    }
    gpu.Settle();
    for (const auto& rank : all) {
      EXPECT_TRUE(rank->idle()) << "the rank hangs";
      rank->CheckResults();
    }
  }

  // Closes all ranks together, without errors and with nothing in progress.
  void Close() {
    std::vector<std::thread> closing;
    for (const auto& rank : all) {
      closing.emplace_back([&rank] { rank->backend()->Close(/*clean=*/true); });
    }
    for (std::thread& thread : closing) thread.join();
  }

  SoftwareGpu gpu;
  SoftwareNccl nccl;
  SoftwareMpi mpi;
  std::deque<std::atomic<int>> rings;  // of each rank's bell
  std::vector<std::unique_ptr<GpuRank>> all;
};

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_GPU_RANKS_H_
