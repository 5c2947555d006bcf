// What an operation on a GPU is made of: launches that pack, scale and unpack,
// and calls of NCCL between them, all in the order of one stream. Pure:
// addresses are computed, never dereferenced.
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

#include "runtime/transport/gpu/adasum.h"
#include "runtime/transport/gpu/move.h"
#include "runtime/transport/gpu/nccl_api.h"
#include "runtime/transport/gpu/sum.h"
#include "runtime/transport/operation.h"

namespace tf_hvd {

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
  // kAlltoall: bytes for, and from, each rank.
  std::vector<int64_t> send;
  std::vector<int64_t> receive;
};

using GpuStep = std::variant<GpuMove, GpuCall, GpuAdasum, GpuSum>;

// True if NCCL, with so much staging memory, can do the operation as
// docs/gpus.md promises it: not int16 and uint16, not products of complex
// numbers, not Min and Max of types that have NaN, which NCCL drops, and not
// Adasum of tensors that do not fit (adasum_plan.h).
bool NcclCanDo(const OperationSpec& spec, size_t staging_bytes);

// True if MPI, with so much staging memory, can do it: it moves bytes, and
// kernels of ours add them (sum_plan.h, adasum_plan.h).
bool MpiCanDo(const OperationSpec& spec, size_t staging_bytes);

// Device memory in which tensors are put together.
struct GpuStaging {
  char* memory = nullptr;
  size_t bytes = 0;
};

// `me`: this rank's place in the set. One rank needs no NCCL. `by_mpi`: the
// calls are those of mpi_communicator.h, none of which reduces.
std::vector<GpuStep> PlanOnGpu(const OperationSpec& spec, size_t me,
                               const GpuStaging& staging, bool by_mpi = false);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_PLAN_H_
