#include "runtime/transport/routing/two_level.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "compute/buffer_ops.h"
#include "runtime/contract/rank_group.h"

namespace tf_hvd {
namespace {

// A sum's options: first within a node, then across nodes. Other reductions are
// scaled before and after.
struct Parts {
  ReduceOptions inside;
  ReduceOptions across;
};

Parts InTwo(const ReduceOptions& options, size_t ranks) {
  const ReduceOptions whole = AverageAsSum(options, ranks);
  Parts parts = {whole, whole};
  parts.across.prescale = 1.0;
  // Half-precision values are rounded before they are sent, so a factor that
  // makes the sum smaller is applied before it can overflow.
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

}  // namespace

TwoLevelBackend::TwoLevelBackend(std::vector<std::vector<int>> nodes, int rank,
                                 ShmBackend* shm, PointToPoint* p2p,
                                 size_t max_message_bytes)
    : nodes_(std::move(nodes)),
      rank_(rank),
      shm_(shm),
      slot_bytes_(LeastSlotBytes(nodes_)),
      across_(p2p, rank, max_message_bytes, /*first_tag=*/P2PBackend::kTags) {
  std::vector<int> all;
  for (const auto& node : nodes_) {
    all.insert(all.end(), node.begin(), node.end());
  }
  std::sort(all.begin(), all.end());
  layouts_[kWorldSet] = LayoutOf(all);
}

Status TwoLevelBackend::SetAdded(int32_t set, const std::vector<int>& ranks) {
  if (std::binary_search(ranks.begin(), ranks.end(), rank_)) {
    layouts_[set] = LayoutOf(ranks);
  }
  return Status::Ok();
}

TwoLevelBackend::Layout TwoLevelBackend::LayoutOf(
    const std::vector<int>& ranks) const {
  Layout layout;
  const auto nodes = std::make_shared<NodeLayout>();
  size_t fewest = SIZE_MAX;
  size_t me = 0;
  for (const auto& node : nodes_) {
    std::vector<size_t> here;
    for (size_t place = 0; place < ranks.size(); ++place) {
      if (!std::binary_search(node.begin(), node.end(), ranks[place])) continue;
      if (ranks[place] == rank_) {
        me = here.size();
        nodes->here = nodes->members.size();
      }
      here.push_back(place);
    }
    if (here.empty()) continue;
    fewest = std::min(fewest, here.size());
    layout.most = std::max(layout.most, here.size());
    nodes->members.push_back(std::move(here));
  }
  nodes->owners = fewest;
  std::vector<int> local;
  for (const size_t place : nodes->members[nodes->here]) {
    local.push_back(ranks[place]);
  }
  layout.local = MembersOf(std::move(local));
  if (me < nodes->owners) {
    std::vector<int> group;
    for (const auto& here : nodes->members) group.push_back(ranks[here[me]]);
    layout.group = MembersOf(std::move(group));
  }
  layout.nodes = nodes;
  return layout;
}

bool TwoLevelBackend::Serves(const OperationSpec& spec) const {
  if (spec.kind == OpKind::kAlltoall) return false;
  if (spec.memory.kind == MemoryKind::kDevice) return false;
  if (spec.set < 0 || spec.set >= P2PBackend::kSets) return false;
  if (Reduces(spec.kind) && !IsReducible(spec.reduce.dtype, spec.reduce.op)) {
    return false;
  }
  const auto found = layouts_.find(spec.set);
  if (found == layouts_.end()) return false;
  const Layout& layout = found->second;
  if (layout.nodes->members.size() < 2) return false;
  // Members that are the only ones on their nodes have nothing to share.
  if (layout.most < 2) return false;
  return HasRoomAcross(spec.kind, *layout.nodes, slot_bytes_);
}

// The exchange across nodes, except for the data of each piece.
OperationSpec TwoLevelBackend::ExchangeOf(const OperationSpec& spec,
                                          const Layout& layout) {
  OperationSpec exchange;
  exchange.kind = spec.kind;
  exchange.ranks = layout.group;
  exchange.set = spec.set;
  exchange.reduce = InTwo(spec.reduce, spec.ranks->size()).across;
  return exchange;
}

Status TwoLevelBackend::Make(OperationSpec spec,
                             std::unique_ptr<Operation>* operation) {
  size_t place = 0;
  TF_HVD_RETURN_IF_ERROR(FindPlace(spec, rank_, &place));
  const Layout& layout = layouts_.at(spec.set);
  ShmAcross across;
  across.layout = layout.nodes;
  across.slot_bytes = slot_bytes_;
  across.root = spec.root;
  across.exchange = ExchangeOf(spec, layout);
  across.by = &across_;
  const ReduceOptions inside = InTwo(spec.reduce, spec.ranks->size()).inside;
  OperationSpec local = std::move(spec);
  local.ranks = layout.local;
  local.root = 0;
  local.reduce = inside;
  return shm_->MakeAcross(std::move(local), std::move(across), operation);
}

}  // namespace tf_hvd
