#include "kernels/local_checks.h"

#include <algorithm>

#include "compute/buffer_ops.h"

namespace tf_hvd {

std::string TitleOf(OpKind kind, const std::string& name) {
  return std::string(NameOf(kind)) + " '" + name + "'";
}

Status FindSet(const Runtime& runtime, int32_t set, Membership* membership) {
  const int rank = runtime.topology().rank;
  if (set == kWorldSet) {
    *membership = {static_cast<size_t>(runtime.topology().size),
                   static_cast<size_t>(rank), nullptr};
    return Status::Ok();
  }
  const SetMembers members = runtime.SetRanks(set);
  if (members == nullptr) return UnknownSet(set);
  const std::vector<int>& ranks = *members;
  const auto found = std::lower_bound(ranks.begin(), ranks.end(), rank);
  if (found == ranks.end() || *found != rank) {
    return InvalidArgument("rank " + std::to_string(rank) +
                           " is not in process set " + std::to_string(set) +
                           "; only its members may call its collectives");
  }
  *membership = {ranks.size(), static_cast<size_t>(found - ranks.begin()),
                 members};
  return Status::Ok();
}

Status UnknownSet(int32_t set) {
  return InvalidArgument("there is no process set " + std::to_string(set) +
                         "; pass a set that add_process_set returned and "
                         "that was not removed");
}

Status CheckRoot(int32_t root, int32_t set, const Membership& membership) {
  if (set == kWorldSet) {
    const auto size = static_cast<int>(membership.ranks);
    if (root >= 0 && root < size) return Status::Ok();
    return InvalidArgument("there is no rank " + std::to_string(root) +
                           "; pass root_rank=0" +
                           (size > 1 ? " to " + std::to_string(size - 1)
                                     : " in a single-rank job"));
  }
  const std::vector<int>& ranks = *membership.members;
  if (std::binary_search(ranks.begin(), ranks.end(), root)) {
    return Status::Ok();
  }
  return InvalidArgument(
      "root_rank " + std::to_string(root) + " is not in process set " +
      std::to_string(set) +
      "; pass a member of the set, by its rank in the whole job");
}

Status CheckReducible(OpKind kind, ReduceOp reduce_op, DType type) {
  const bool adasum = reduce_op == ReduceOp::kAdasum;
  if (adasum && YieldOf(kind) != Yield::kWhole) {
    return InvalidArgument(
        "Adasum needs whole vectors; pass Average or Sum, or use allreduce");
  }
  if (!(adasum ? IsFloating(type) : IsReducible(type, reduce_op))) {
    return InvalidArgument(std::string("cannot compute ") + NameOf(reduce_op) +
                           " of " + NameOf(type) +
                           "; cast the tensor or use another operation");
  }
  return Status::Ok();
}

Status EvenSplits(int64_t rows, size_t ranks, std::vector<int64_t>* splits) {
  const auto count = static_cast<int64_t>(ranks);
  if (rows % count != 0) {
    return InvalidArgument("the first dimension, " + std::to_string(rows) +
                           ", is not divisible by the " +
                           std::to_string(count) +
                           " ranks; pass splits with a row count for each");
  }
  splits->assign(ranks, rows / count);
  return Status::Ok();
}

}  // namespace tf_hvd
