// P2PBackend: the collectives on top of messages between pairs of ranks. What
// serves wherever nothing faster does, and the reference for what does.
//
// As Backend: holder of the progress lock only.
#ifndef TF_HVD_RUNTIME_TRANSPORT_P2P_BACKEND_H_
#define TF_HVD_RUNTIME_TRANSPORT_P2P_BACKEND_H_

#include <cstddef>
#include <memory>
#include <set>
#include <vector>

#include "base/status.h"
#include "runtime/contract/operation.h"
#include "runtime/contract/point_to_point.h"

namespace tf_hvd {

class P2PBackend final : public Backend {
 public:
  // Its messages have so many tags, from a first one on. Operations of sets
  // whose numbers are below kSets, and that are less than kOfOneSet apart in
  // their set, have different ones.
  static constexpr int kTags = PointToPoint::kTags / 2;
  static constexpr int kOfOneSet = 16;
  static constexpr int kSets = kTags / kOfOneSet;

  // `p2p` belongs to the caller and must outlive the backend; it may be null
  // for a job of one rank. `max_message_bytes`: where longer messages are cut,
  // for tests.
  P2PBackend(PointToPoint* p2p, int rank,
             size_t max_message_bytes = PointToPoint::kMaxBytes,
             int first_tag = 0)
      : p2p_(p2p),
        rank_(rank),
        max_message_bytes_(max_message_bytes),
        first_tag_(first_tag) {}
  std::string_view name() const override { return "p2p"; }

  bool Serves(const OperationSpec& spec) const override;
  Status Make(OperationSpec spec,
              std::unique_ptr<Operation>* operation) override;
  // What a second one wins is its messages being under way while the first
  // waits; each has staging memory of its own.
  size_t window() const override { return 2; }

 private:
  friend class P2POperation;
  struct Block {
    std::unique_ptr<char[]> memory;
    size_t bytes = 0;
  };

  // Memory for one operation, kept from one to the next.
  Block Take(size_t bytes);
  void GiveBack(Block block);

  PointToPoint* const p2p_;
  const int rank_;
  const size_t max_message_bytes_;
  const int first_tag_;
  std::vector<Block> free_;
  // Of the operations that have begun. One whose tag is taken waits.
  std::set<int> tags_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_P2P_BACKEND_H_
