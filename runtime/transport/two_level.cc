#include "runtime/transport/two_level.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "kernels/buffer_ops.h"
#include "runtime/transport/rank_group.h"

namespace tf_hvd {
namespace {

// A sum's options, first within a node, then across nodes. All else than a sum
// is scaled before and after.
struct Parts {
  ReduceOptions inside;
  ReduceOptions across;
};

Parts InTwo(const ReduceOptions& options, size_t ranks) {
  const ReduceOptions whole = AverageAsSum(options, ranks);
  Parts parts = {whole, whole};
  parts.across.prescale = 1.0;
  // Half precisions are rounded on their way: a sum that is made smaller is so
  // before it can overflow.
  const bool half =
      whole.dtype == DType::kFloat16 || whole.dtype == DType::kBfloat16;
  const double scale = whole.postscale / whole.divisor;
  const bool early =
      half && whole.op == ReduceOp::kSum && std::abs(scale) < 1.0;
  ReduceOptions* const unscaled = early ? &parts.across : &parts.inside;
  unscaled->postscale = 1.0;
  unscaled->divisor = 1.0;
  return parts;
}

size_t LeastSlotBytes(const std::vector<std::vector<int>>& nodes) {
  size_t least = SIZE_MAX;
  for (const auto& node : nodes) {
    least = std::min(least, ShmArena::SlotBytesFor(node.size()));
  }
  return least;
}

// An allreduce between the owners of a slice.
class Exchange final : public ShmCross {
 public:
  Exchange(OperationSpec spec, Backend* backend)
      : spec_(std::move(spec)), backend_(backend) {}

  Status Make(const Span& slice, uint64_t number,
              std::unique_ptr<Operation>* operation) override {
    OperationSpec spec = spec_;
    spec.number = number;
    spec.spans = {slice};
    return backend_->Make(std::move(spec), operation);
  }

 private:
  const OperationSpec spec_;
  Backend* const backend_;
};

}  // namespace

TwoLevelBackend::TwoLevelBackend(std::vector<std::vector<int>> nodes, int rank,
                                 ShmBackend* shm, PointToPoint* p2p,
                                 size_t max_message_bytes)
    : nodes_(std::move(nodes)),
      rank_(rank),
      shm_(shm),
      slot_bytes_(LeastSlotBytes(nodes_)),
      across_(p2p, rank, max_message_bytes, /*first_tag=*/P2PBackend::kTags) {}

const TwoLevelBackend::Layout& TwoLevelBackend::LayoutOf(
    const OperationSpec& spec) const {
  const auto [found, added] = layouts_.try_emplace(spec.set);
  Layout& layout = found->second;
  if (!added) return layout;
  std::vector<std::vector<int>> members;
  size_t fewest = SIZE_MAX;
  for (const auto& node : nodes_) {
    std::vector<int> here;
    std::set_intersection(node.begin(), node.end(), spec.ranks->begin(),
                          spec.ranks->end(), std::back_inserter(here));
    if (here.empty()) continue;
    fewest = std::min(fewest, here.size());
    layout.most = std::max(layout.most, here.size());
    members.push_back(std::move(here));
  }
  layout.nodes = members.size();
  layout.owners = fewest;
  const auto mine =
      std::find_if(members.begin(), members.end(), [this](const auto& here) {
        return std::binary_search(here.begin(), here.end(), rank_);
      });
  if (mine == members.end()) return layout;
  const auto place = static_cast<size_t>(
      std::lower_bound(mine->begin(), mine->end(), rank_) - mine->begin());
  layout.local = std::make_shared<const std::vector<int>>(*mine);
  if (place < layout.owners) {
    std::vector<int> group;
    for (const auto& here : members) group.push_back(here[place]);
    layout.group = std::make_shared<const std::vector<int>>(std::move(group));
  }
  return layout;
}

// Sets of which every node has one member have nothing to share.
bool TwoLevelBackend::Serves(const OperationSpec& spec) const {
  if (spec.kind != OpKind::kAllreduce) return false;
  if (spec.memory.kind == MemoryKind::kDevice) return false;
  if (spec.set < 0 || spec.set >= P2PBackend::kSets) return false;
  if (!IsReducible(spec.reduce.dtype, spec.reduce.op)) return false;
  const Layout& layout = LayoutOf(spec);
  return layout.nodes > 1 && layout.most > 1;
}

Status TwoLevelBackend::Make(OperationSpec spec,
                             std::unique_ptr<Operation>* operation) {
  size_t place = 0;
  TF_HVD_RETURN_IF_ERROR(FindPlace(spec, rank_, &place));
  const Layout& layout = LayoutOf(spec);
  const Parts parts = InTwo(spec.reduce, spec.ranks->size());
  OperationSpec exchange;
  exchange.kind = OpKind::kAllreduce;
  exchange.ranks = layout.group;
  exchange.set = spec.set;
  exchange.reduce = parts.across;
  OperationSpec local = std::move(spec);
  local.ranks = layout.local;
  local.reduce = parts.inside;
  ShmAcross across;
  across.slot_bytes = slot_bytes_;
  across.owners = layout.owners;
  const bool other = other_ != nullptr && other_->Serves(exchange);
  across.cross = std::make_unique<Exchange>(
      std::move(exchange), other ? other_ : static_cast<Backend*>(&across_));
  return shm_->MakeAcross(std::move(local), std::move(across), operation);
}

}  // namespace tf_hvd
