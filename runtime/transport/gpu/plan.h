// What an operation on a GPU is made of: pieces, each of which packs tensors,
// has them reduced or moved between ranks, and unpacks them. Pure: addresses
// are computed, never dereferenced.
//
// Small tensors are put together in one half of the staging memory, the next
// piece's in the other, so that one piece is packed while another is on its
// way. Large ones stay where they are, and go with the piece in one call.
//
// All ranks of a set make the same calls of NCCL, with the same counts: these
// depend on the shapes alone, not on who has joined, where tensors lie, or
// whether they are cast on the way.
#ifndef TF_HVD_RUNTIME_TRANSPORT_GPU_PLAN_H_
#define TF_HVD_RUNTIME_TRANSPORT_GPU_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "runtime/contract/operation.h"
#include "runtime/transport/gpu/move.h"
#include "runtime/transport/gpu/nccl_api.h"
#include "runtime/transport/gpu/sum.h"

namespace tf_hvd {

// What else a call takes, with a count of its own.
struct GpuBuffer {
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;
};

// One call of a communicator: of NCCL, or what stands for it by MPI
// (mpi_communicator.h). kAlltoall: a group of sends and receives.
struct GpuCall {
  OpKind kind = OpKind::kAllreduce;
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;  // ncclAllReduce's and so on: of one rank
  NcclNumber number = NcclNumber::kUint8;
  NcclReduction reduction = NcclReduction::kSum;
  int root = 0;
  // Other buffers that are treated alike: one group with the first.
  std::vector<GpuBuffer> others;
  // kAlltoall: bytes for, and from, each rank.
  std::vector<int64_t> send;
  std::vector<int64_t> receive;
};

using GpuStep = std::variant<GpuMove, GpuCall, GpuSum>;

// True if NCCL can do the operation as docs/gpus.md promises it: not int16 and
// uint16, not products of complex numbers, not Min and Max of types that have
// NaN, which NCCL drops, and not Adasum.
bool NcclCanDo(const OperationSpec& spec);

// True if MPI can do it: it moves bytes, and kernels of ours add them
// (sum_plan.h).
bool MpiCanDo(const OperationSpec& spec);

// Memory of the device that is the backend's: what a piece uses of it.
enum GpuMemory : unsigned {
  kFirstHalf = 1,   // of the staging memory
  kSecondHalf = 2,  // the same
  kSpare = 4,
};
inline constexpr int kGpuMemories = 3;

struct GpuStaging {
  char* memory = nullptr;
  size_t bytes = 0;
  // For a rank that has joined: zeros, as large as the others' tensors.
  char* spare = nullptr;
  // That the first piece is to use, of the halves.
  GpuMemory half = kFirstHalf;
};

// From where on tensors are not packed, and how many bytes of such go in one
// call, at most. The same on all ranks.
struct GpuLimits {
  size_t in_place_bytes = size_t{4} << 20;
  size_t call_bytes = size_t{128} << 20;
};

// Part of an operation. `unpack` comes after the last of `steps`, which come
// after `pack`, one after the other.
struct GpuPiece {
  GpuMove pack;  // may be empty, as may be the others
  std::vector<GpuStep> steps;
  GpuMove unpack;
  unsigned uses = 0;  // GpuMemory: nothing else may use it meanwhile
};

struct GpuPlan {
  std::vector<GpuPiece> pieces;
  size_t spare_bytes = 0;  // that it needs at GpuStaging::spare
  GpuMemory next_half = kFirstHalf;
};

// `me`: this rank's place in the set. One rank needs no NCCL. `by_mpi`: the
// calls are those of mpi_communicator.h, none of which reduces.
GpuPlan PlanOnGpu(const OperationSpec& spec, size_t me,
                  const GpuStaging& staging, const GpuLimits& limits,
                  bool by_mpi = false);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_PLAN_H_
