// The parts of an operation on a GPU: pieces, each of which packs tensors,
// reduces them or moves them between ranks, and unpacks them. Pure: addresses
// are computed, never dereferenced.
//
// Small tensors are packed into one half of the staging memory and those of the
// next piece into the other half, so that one piece is packed while another is
// in transit. Large tensors are not copied, and are added to the piece's call.
//
// All ranks of a set make the same NCCL calls, with the same counts. Counts
// depend only on the shapes, not on the ranks that have joined, on the place of
// tensors, or on casts.
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

// Another buffer of a call, with its own count.
struct GpuBuffer {
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;
};

// One call of a communicator: of NCCL, or of its replacement by MPI
// (mpi_communicator.h). kAlltoall: a group of sends and receives.
struct GpuCall {
  OpKind kind = OpKind::kAllreduce;
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;  // as for ncclAllReduce and the others: of one rank
  NcclNumber number = NcclNumber::kUint8;
  NcclReduction reduction = NcclReduction::kSum;
  int root = 0;
  // Other buffers that are treated alike, in one group with the first.
  std::vector<GpuBuffer> others;
  // kAlltoall: bytes for, and from, each rank.
  std::vector<int64_t> send;
  std::vector<int64_t> receive;
};

using GpuStep = std::variant<GpuMove, GpuCall, GpuSum>;

// True if NCCL can do the operation as specified in docs/gpus.md. Excludes
// int16 and uint16, products of complex numbers, Min and Max of types that have
// NaN, which NCCL drops, and Adasum.
bool NcclCanDo(const OperationSpec& spec);

// True if MPI can do it: MPI moves the bytes, and tf_hvd's kernels add them
// (sum_plan.h).
bool MpiCanDo(const OperationSpec& spec);

// Parts of the backend's device memory; the flags say which of them a piece
// uses.
enum GpuMemory : unsigned {
  kFirstHalf = 1,   // of the staging memory
  kSecondHalf = 2,  // the same
  kSpare = 4,
};
inline constexpr int kGpuMemories = 3;

struct GpuStaging {
  char* memory = nullptr;
  size_t bytes = 0;
  // For a rank that has joined: zeros, as many as the other ranks' tensors
  // have.
  char* spare = nullptr;
  // The half for the first piece.
  GpuMemory half = kFirstHalf;
};

// The size from which tensors are not packed, and the maximum total size of
// such tensors in one call. The same on all ranks.
struct GpuLimits {
  size_t in_place_bytes = size_t{4} << 20;
  size_t call_bytes = size_t{128} << 20;
};

// Part of an operation: `pack`, then `steps` in sequence, then `unpack`.
struct GpuPiece {
  GpuMove pack;  // may be empty, as may the other parts
  std::vector<GpuStep> steps;
  GpuMove unpack;
  unsigned uses = 0;  // GpuMemory flags: no other piece may use these meanwhile
};

struct GpuPlan {
  std::vector<GpuPiece> pieces;
  size_t spare_bytes = 0;  // needed at GpuStaging::spare
  GpuMemory next_half = kFirstHalf;
};

// `me`: this rank's place in the set. One rank does not need NCCL. `by_mpi`:
// the calls are for mpi_communicator.h, and none of them reduces.
GpuPlan PlanOnGpu(const OperationSpec& spec, size_t me,
                  const GpuStaging& staging, const GpuLimits& limits,
                  bool by_mpi = false);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_PLAN_H_
