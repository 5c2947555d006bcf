// P2PBackend: the collectives on top of messages between pairs of ranks. Used
// wherever no faster backend applies, and the reference for the faster ones.
//
// As for Backend, called only by the holder of the progress lock.
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
  // Number of tags that its messages use, from a first one on. Operations of
  // sets with numbers below kSets that are less than kOfOneSet apart in their
  // set have different tags.
  static constexpr int kTags = PointToPoint::kTags / 2;
  static constexpr int kOfOneSet = 16;
  static constexpr int kSets = kTags / kOfOneSet;

  // `p2p` belongs to the caller and must outlive the backend; it may be null
  // for a single-rank job. `max_message_bytes`: longer messages are split; for
  // tests.
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
  // A second operation's messages can be in transit while the first waits; each
  // has its own staging memory.
  size_t window() const override { return 2; }

 private:
  friend class P2POperation;
  struct Block {
    std::unique_ptr<char[]> memory;
    size_t bytes = 0;
  };

  // Memory for one operation, reused by later ones.
  Block Take(size_t bytes);
  void GiveBack(Block block);

  PointToPoint* const p2p_;
  const int rank_;
  const size_t max_message_bytes_;
  const int first_tag_;
  std::vector<Block> free_;
  // Tags of the operations that have begun. An operation waits if its tag is in
  // use.
  std::set<int> tags_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_P2P_BACKEND_H_
