// The steps of operations on GPUs, as text: "copy_4 x2" is one launch that
// moves two tensors; calls of NCCL show their count and type.
#ifndef TF_HVD_TESTS_GPU_PLAN_TEXT_H_
#define TF_HVD_TESTS_GPU_PLAN_TEXT_H_

#include <cstdint>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "runtime/transport/gpu/plan.h"

namespace tf_hvd {

// Addresses that are never read: tensors are far apart.
inline char* Tensor(int number) {
  return reinterpret_cast<char*>(uintptr_t{0x100000} *
                                 static_cast<uintptr_t>(number + 1));
}
inline char* const kStaging = reinterpret_cast<char*>(uintptr_t{0x70000000});

inline std::string Text(NcclNumber number) {
  constexpr const char* kNames[] = {"int8",    "uint8",   "int32",   "uint32",
                                    "int64",   "uint64",  "float16", "float32",
                                    "float64", "bfloat16"};
  return kNames[static_cast<int>(number)];
}

inline std::string Text(const GpuCall& call) {
  constexpr const char* kReductions[] = {"sum", "product", "max", "min"};
  std::ostringstream text;
  text << NameOf(call.kind);
  if (call.kind == OpKind::kAlltoall) {
    for (const int64_t bytes : call.send) text << " >" << bytes;
    for (const int64_t bytes : call.receive) text << " <" << bytes;
    return text.str();
  }
  text << " " << call.count;
  for (const GpuBuffer& other : call.others) text << "+" << other.count;
  text << " " << Text(call.number);
  if (call.kind == OpKind::kBroadcast) {
    text << " from " << call.root;
  } else if (call.kind != OpKind::kAllgather) {
    text << " " << kReductions[static_cast<int>(call.reduction)];
  }
  return text.str();
}

inline std::string Text(const GpuSum& sum) {
  return sum.kernel.substr(7) + " " + std::to_string(sum.arguments.ranks) +
         "x" + std::to_string(sum.arguments.count);
}

inline std::string Text(const GpuMove& move) {
  std::ostringstream text;
  text << move.kernel.substr(7) << " x" << move.rows.size();  // "tf_hvd_"
  if (move.kernel.find("copy") != std::string::npos) return text.str();
  if (move.arguments.factor != 1.0) text << " *" << move.arguments.factor;
  if (move.arguments.divisor != 1.0) text << " /" << move.arguments.divisor;
  return text.str();
}

inline std::string Text(const std::vector<GpuStep>& steps) {
  std::string text;
  for (const GpuStep& step : steps) {
    if (!text.empty()) text += ", ";
    text += std::visit([](const auto& one) { return Text(one); }, step);
  }
  return text;
}

// The part that must be the same on all ranks.
inline std::string CallsOf(const std::vector<GpuStep>& steps) {
  std::string text;
  for (const GpuStep& step : steps) {
    const auto* const call = std::get_if<GpuCall>(&step);
    if (call != nullptr) text += Text(*call) + ", ";
  }
  return text;
}

inline OperationSpec Spec(OpKind kind, int ranks) {
  OperationSpec spec;
  spec.kind = kind;
  std::vector<int> all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  spec.ranks = MembersOf(std::move(all));
  return spec;
}

// Tensors with these element counts, at successive separate addresses.
inline OperationSpec Allreduce(const std::vector<int64_t>& counts,
                               const ReduceOptions& options, int ranks = 4) {
  OperationSpec spec = Spec(OpKind::kAllreduce, ranks);
  spec.reduce = options;
  for (size_t i = 0; i < counts.size(); ++i) {
    const int number = static_cast<int>(2 * i);
    spec.spans.push_back({Tensor(number), Tensor(number + 1), counts[i]});
  }
  return spec;
}

// The same on a rank that has joined.
inline OperationSpec Joined(OperationSpec spec) {
  for (Span& span : spec.spans) span.input = span.output = nullptr;
  return spec;
}

inline OperationSpec InPlace(OperationSpec spec) {
  for (Span& span : spec.spans) span.output = const_cast<void*>(span.input);
  return spec;
}

// All steps of a plan in the order in which they are enqueued on streams.
inline std::vector<GpuStep> StepsOf(const GpuPlan& plan) {
  std::vector<GpuStep> steps;
  for (const GpuPiece& piece : plan.pieces) {
    if (!piece.pack.empty()) steps.emplace_back(piece.pack);
    steps.insert(steps.end(), piece.steps.begin(), piece.steps.end());
    if (!piece.unpack.empty()) steps.emplace_back(piece.unpack);
  }
  return steps;
}

inline char* const kSpareMemory =
    reinterpret_cast<char*>(uintptr_t{0x78000000});
// Limits: smaller tensors are packed, and a call has at most this many bytes.
inline constexpr GpuLimits kLimits = {2048, 8192};

inline GpuPlan PlanPieces(const OperationSpec& spec, size_t me,
                          size_t staging_bytes, bool by_mpi = false) {
  GpuStaging staging;
  staging.memory = kStaging;
  staging.bytes = staging_bytes;
  staging.spare = kSpareMemory;
  return PlanOnGpu(spec, me, staging, kLimits, by_mpi);
}

inline std::vector<GpuStep> PlanIn(const OperationSpec& spec, size_t me,
                                   size_t staging_bytes, bool by_mpi = false) {
  return StepsOf(PlanPieces(spec, me, staging_bytes, by_mpi));
}

// `half`: bytes of half the staging memory.
inline std::vector<GpuStep> Plan(const OperationSpec& spec, size_t me = 0,
                                 size_t half = 4096) {
  return PlanIn(spec, me, 2 * half);
}

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_PLAN_TEXT_H_
