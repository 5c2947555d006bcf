// Runs the kernels of device_moves.h on the host, block by block and thread by
// thread, and compares their bits with the results of buffer_ops for the same
// elements.
#include "compute/device_moves.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/compute/device_launch.h"
#include "tests/gpu/software_kernels.h"

namespace tf_hvd {
namespace {

constexpr int kThreadCounts[] = {1, 32, 256};

// Every kernel, with every factor and number of threads.
void CheckAll(const std::vector<Row>& rows, int64_t tile) {
  for (const SoftwareKernel& kernel : SoftwareKernels()) {
    for (const Factors& factors : FactorsFor(MeaningOf(kernel))) {
      for (const int threads : kThreadCounts) {
        SCOPED_TRACE(std::string(kernel.name) + " by " +
                     std::to_string(threads) + " threads, times " +
                     std::to_string(factors.factor) + " / " +
                     std::to_string(factors.divisor));
        Launch(kernel, rows, tile, factors).Check(threads);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

std::vector<Row> AllOffsets() {
  std::vector<Row> rows;
  for (int in = 0; in < 18; ++in) {
    for (int out = 0; out < 18; ++out) {
      rows.push_back({(in * 18 + out) % 71, in, out});
    }
  }
  return rows;
}

std::vector<Row> TinyRows() {
  std::vector<Row> rows;
  for (int i = 0; i < 700; ++i) rows.push_back({i % 4, i % 7, i % 5});
  return rows;
}

TEST(DeviceMoves, EachNumberHasAKernel) {
  EXPECT_EQ(SoftwareKernels().size(), 25u);
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const std::string name = std::string("tf_hvd_scale_") + NameOf(dtype);
    EXPECT_EQ(FindSoftwareKernel(name) == nullptr, IsComplex(dtype)) << name;
  }
}

TEST(DeviceMoves, AnyOffsetOfInputsAndOutputs) { CheckAll(AllOffsets(), 64); }

TEST(DeviceMoves, RowsThatCrossTilesOfAnOddSize) { CheckAll(AllOffsets(), 53); }

TEST(DeviceMoves, ManyTinyRowsInOneTile) { CheckAll(TinyRows(), 256); }

TEST(DeviceMoves, OneRowOfManyTiles) {
  CheckAll({{5, 1, 2}, {3001, 3, 3}, {2}}, 128);
}

TEST(DeviceMoves, TilesOfOneElement) { CheckAll({{3}, {0}, {20, 1, 1}}, 1); }

TEST(DeviceMoves, EmptyRowsAtEachPosition) {
  CheckAll({{0}, {0}, {64, 1}, {0}, {0}, {0, 1, 1}, {65}, {0}, {1}, {0}}, 64);
}

TEST(DeviceMoves, OnlyEmptyRows) {
  for (const SoftwareKernel& kernel : SoftwareKernels()) {
    Launch launch(kernel, {{0}, {0}}, 8, {1, 1});
    EXPECT_EQ(launch.tiles(), 0);
    const std::string before = launch.outputs()->text();
    kernel.tile(launch.arguments(), 0, 0, 1);
    EXPECT_EQ(launch.outputs()->text(), before);
  }
}

TEST(DeviceMoves, NullInputsGiveZeros) {
  std::vector<Row> rows = AllOffsets();
  for (size_t i = 0; i < rows.size(); ++i) rows[i].zeros = i % 3 != 0;
  CheckAll(rows, 64);
}

// As on the CPU: the zeros of a rank that has joined do not become -0, nor NaN
// with an infinite factor.
TEST(DeviceMoves, ZerosOfNullInputsAreNotScaled) {
  for (const Factors& factors : {Factors{-1, 1}, Factors{HUGE_VAL, 1}}) {
    for (const SoftwareKernel& kernel : SoftwareKernels()) {
      SCOPED_TRACE(kernel.name);
      const Row zeros = {40, 0, 1, true};
      Launch(kernel, {zeros}, 64, factors).Check(1);
    }
  }
}

// An element that is written twice is scaled twice.
TEST(DeviceMoves, InPlace) {
  for (const SoftwareKernel& kernel : SoftwareKernels()) {
    if (kernel.input_bytes != kernel.output_bytes) continue;
    for (const Factors& factors : FactorsFor(MeaningOf(kernel))) {
      for (const int threads : kThreadCounts) {
        SCOPED_TRACE(kernel.name);
        Launch(kernel, AllOffsets(), 53, factors, true).CheckInPlace(threads);
      }
    }
  }
}

// Records the writer of each byte: a byte that keeps its value regardless of
// the initial value was not written.
void CountWrites(const SoftwareKernel& kernel, Launch* launch, int threads,
                 std::vector<int>* writes) {
  AlignedBytes* const outputs = launch->outputs();
  const size_t bytes = outputs->text().size();
  writes->assign(bytes, 0);
  for (int64_t tile = 0; tile < launch->tiles(); ++tile) {
    for (int thread = 0; thread < threads; ++thread) {
      std::string after[2];
      for (const char fill : {'\0', '\1'}) {
        outputs->Fill(std::string(bytes, fill));
        kernel.tile(launch->arguments(), tile, thread, threads);
        after[static_cast<size_t>(fill)] = outputs->text();
      }
      for (size_t i = 0; i < bytes; ++i) {
        (*writes)[i] += after[0][i] != '\0' || after[1][i] != '\1' ? 1 : 0;
      }
    }
  }
}

TEST(DeviceMoves, EachByteIsWrittenByOneThreadOfOneTile) {
  const std::vector<Row> rows = {{0}, {45, 1, 1}, {3}, {70, 2, 3}, {41, 1, 1}};
  for (const SoftwareKernel& kernel : SoftwareKernels()) {
    Launch launch(kernel, rows, 50, {2, 1});
    const std::string before = launch.outputs()->text();
    const std::string expected = launch.Expected(launch.outputs());
    for (const int threads : kThreadCounts) {
      SCOPED_TRACE(std::string(kernel.name) + " by " + std::to_string(threads));
      std::vector<int> writes;
      CountWrites(kernel, &launch, threads, &writes);
      int64_t written = 0;
      for (const int times : writes) {
        EXPECT_LE(times, 1);
        written += times;
      }
      EXPECT_EQ(written, launch.arguments().total *
                             static_cast<int64_t>(kernel.output_bytes));
    }
  }
}

// Addresses without memory until touched.
class SparseMemory {
 public:
  explicit SparseMemory(size_t bytes) : bytes_(bytes) {
    memory_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~SparseMemory() {
    if (ok()) munmap(memory_, bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  bool ok() const { return memory_ != MAP_FAILED; }
  char* data() { return static_cast<char*>(memory_); }

 private:
  const size_t bytes_;
  void* memory_;
};

TEST(DeviceMoves, OneRowLongerThan32Bits) {
  constexpr int64_t kElements = (int64_t{1} << 32) + 1000;
  constexpr int64_t kTile = 512;
  for (const char* name : {"tf_hvd_copy_1", "tf_hvd_scale_int16"}) {
    SCOPED_TRACE(name);
    const SoftwareKernel& kernel = *FindSoftwareKernel(name);
    const size_t bytes = kElements * kernel.input_bytes;
    SparseMemory inputs(bytes);
    SparseMemory outputs(bytes);
    if (!inputs.ok() || !outputs.ok()) GTEST_SKIP() << "too few addresses";
    for (size_t i = 1; i <= 4096; ++i) {
      inputs.data()[bytes - i] = static_cast<char>(i * 7);
    }
    const MoveRow row = {inputs.data(), outputs.data(), kElements};
    const MoveArguments arguments = {&row, 1, kElements, kTile, 3.0, 1.0};
    const int64_t tiles = (kElements + kTile - 1) / kTile;
    for (const int64_t tile : {tiles - 2, tiles - 1}) {
      for (int thread = 0; thread < 32; ++thread) {
        kernel.tile(arguments, tile, thread, 32);
      }
    }
    const int64_t begin = (tiles - 2) * kTile;
    const size_t at = static_cast<size_t>(begin) * kernel.input_bytes;
    EXPECT_EQ(Reference(kernel, inputs.data() + at, kElements - begin, {3, 1}),
              std::string(outputs.data() + at, bytes - at));
    EXPECT_EQ(outputs.data()[at - 1], 0);
  }
}

// Only the ends of the rows before the tile are read.
TEST(DeviceMoves, SmallRowsAfterHugeOnes) {
  constexpr int64_t kHuge = (int64_t{1} << 40) + 3;
  for (const SoftwareKernel& kernel : SoftwareKernels()) {
    SCOPED_TRACE(kernel.name);
    std::vector<uint64_t> input(200);
    std::vector<uint64_t> output(200);
    const std::vector<MoveRow> rows = {
        {nullptr, nullptr, kHuge},
        {nullptr, nullptr, 2 * kHuge},
        {input.data(), output.data(), 2 * kHuge + 90},
        {input.data() + 100, output.data() + 100, 2 * kHuge + 190}};
    for (size_t i = 0; i < input.size(); ++i) input[i] = i * 0x0101010101;
    const MoveArguments arguments = {rows.data(), 4,   2 * kHuge + 190,
                                     2 * kHuge,   2.0, 1.0};
    for (int thread = 0; thread < 32; ++thread) {
      kernel.tile(arguments, 1, thread, 32);
    }
    const auto* const in = reinterpret_cast<const char*>(input.data());
    const auto* const out = reinterpret_cast<const char*>(output.data());
    for (const auto& [at, count] : {std::pair{0, 90}, std::pair{100, 100}}) {
      const std::string expected =
          Reference(kernel, in + at * 8, count, {2, 1});
      EXPECT_EQ(std::string(out + at * 8, expected.size()), expected);
    }
  }
}

}  // namespace
}  // namespace tf_hvd
