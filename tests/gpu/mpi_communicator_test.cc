// MpiCommunicator on a CUDA-aware software MPI: the messages between ranks in
// jobs of several sizes, and the translation of MPI's errors.
#include "runtime/transport/gpu/mpi_communicator.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/transport/gpu/devices.h"
#include "tests/gpu/software_gpu.h"
#include "tests/gpu/software_mpi.h"

namespace tf_hvd {
namespace {

using Bytes = std::vector<char>;

class MpiRanks {
 public:
  explicit MpiRanks(int ranks) : gpu_(ranks, 3), mpi_(&gpu_, ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      devices_.push_back(
          std::make_unique<GpuDevices>(SoftwareGpu::Cuda(), rank));
      std::shared_ptr<GpuDevice> device;
      EXPECT_TRUE(devices_.back()->OfOrdinal(rank, &device).ok());
      streams_.push_back(gpu_.NewStream(rank));
      all_.push_back(std::make_unique<MpiCommunicator>(
          mpi_.Api(rank), MpiHandle{nullptr}, rank, ranks, std::move(device)));
    }
  }

  int size() const { return static_cast<int>(all_.size()); }
  MpiCommunicator& at(int rank) { return *all_[static_cast<size_t>(rank)]; }
  CudaStream stream(int rank) { return streams_[static_cast<size_t>(rank)]; }
  const SoftwareMpi& mpi() const { return mpi_; }
  MpiApi* api(int rank) { return const_cast<MpiApi*>(mpi_.Api(rank)); }

  char* Tensor(int rank, const Bytes& bytes) {
    char* const memory = gpu_.NewMemory(rank, bytes.size(), "a tensor");
    gpu_.Write(stream(rank), memory, bytes);
    return memory;
  }

  void Put(int rank, const GpuCall& call) {
    EXPECT_TRUE(at(rank).Put(call, stream(rank)).ok());
  }

  // Waits until all calls have ended, or nothing progresses any more.
  void Run() {
    for (int turn = 0; turn < 10'000; ++turn) {
      bool all_ready = true;
      for (int rank = 0; rank < size(); ++rank) {
        bool ready = false;
        const Status status = at(rank).Ready(&ready);
        ASSERT_TRUE(status.ok()) << status.message();
        all_ready = all_ready && ready;
      }
      if (all_ready) return;
    }
    ADD_FAILURE() << "the calls hang";
  }

  Bytes Values(int rank, const char* memory, size_t bytes) {
    const auto read = gpu_.Read(stream(rank), memory, bytes);
    gpu_.Settle();
    return *read;
  }

  void ExpectNoFaults() {
    EXPECT_EQ(mpi_.left(), 0u);
    for (const std::string& fault : gpu_.Faults()) ADD_FAILURE() << fault;
  }

 private:
  SoftwareGpu gpu_;
  SoftwareMpi mpi_;
  std::vector<std::unique_ptr<GpuDevices>> devices_;
  std::vector<CudaStream> streams_;
  std::vector<std::unique_ptr<MpiCommunicator>> all_;
};

// By the number of ranks.
class MpiCommunicators : public ::testing::TestWithParam<int> {};

TEST_P(MpiCommunicators, BroadcastsFromEachRankDownATree) {
  for (int root = 0; root < GetParam(); ++root) {
    MpiRanks ranks(GetParam());
    const Bytes value = {'r', static_cast<char>('0' + root), 'x'};
    std::vector<char*> outputs;
    for (int rank = 0; rank < ranks.size(); ++rank) {
      GpuCall call;
      call.kind = OpKind::kBroadcast;
      call.root = root;
      call.count = value.size();
      outputs.push_back(ranks.Tensor(rank, Bytes(value.size(), '-')));
      call.output = outputs.back();
      call.input = rank == root ? ranks.Tensor(rank, value) : outputs.back();
      ranks.Put(rank, call);
    }
    ranks.Run();
    // As many sends as receiving ranks, and as many receives.
    EXPECT_EQ(ranks.mpi().calls(), 2u * static_cast<size_t>(ranks.size() - 1));
    for (int rank = 0; rank < ranks.size(); ++rank) {
      EXPECT_EQ(ranks.Values(rank, outputs[static_cast<size_t>(rank)], 3),
                value)
          << "rank " << rank << ", root " << root;
    }
    ranks.ExpectNoFaults();
  }
}

INSTANTIATE_TEST_SUITE_P(, MpiCommunicators,
                         ::testing::Values(2, 3, 4, 5, 7, 8, 9));

GpuCall FromRank0(char* memory) {
  GpuCall call;
  call.kind = OpKind::kBroadcast;
  call.input = call.output = memory;
  call.count = 4;
  return call;
}

// Until then MPI may write to the memory at any time.
TEST(MpiCommunicator, RestsWhenAllMessagesHaveEnded) {
  MpiRanks ranks(2);
  ranks.Put(1, FromRank0(ranks.Tensor(1, Bytes(4, '-'))));
  EXPECT_TRUE(ranks.at(1).at_rest());
  bool ready = true;
  for (int turn = 0; turn < 100; ++turn) {
    ASSERT_TRUE(ranks.at(1).Ready(&ready).ok());
  }
  EXPECT_FALSE(ready);
  EXPECT_FALSE(ranks.at(1).at_rest());
  ranks.Put(0, FromRank0(ranks.Tensor(0, Bytes(4, 'x'))));
  ranks.Run();
  EXPECT_TRUE(ranks.at(1).at_rest());
  ranks.ExpectNoFaults();
}

TEST(MpiCommunicator, ErrorsOfMpiAreNamed) {
  MpiRanks ranks(2);
  ranks.api(0)->isend = [](void*, const void*, int, int, int, MpiHandle,
                           MpiHandle*) { return 7; };
  ranks.Put(0, FromRank0(ranks.Tensor(0, Bytes(4, 'x'))));
  Status status;
  for (int turn = 0; turn < 100 && status.ok(); ++turn) {
    bool ready = false;
    status = ranks.at(0).Ready(&ready);
  }
  EXPECT_NE(status.message().find("MPI_Isend"), std::string::npos)
      << status.message();
  EXPECT_TRUE(ranks.at(0).at_rest());
}

}  // namespace
}  // namespace tf_hvd
