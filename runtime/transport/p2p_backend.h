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

#include "runtime/status.h"
#include "runtime/transport/operation.h"
#include "runtime/transport/point_to_point.h"

namespace tf_hvd {

class P2PBackend final : public Backend {
 public:
  // Tags of messages are from 0 to below this.
  static constexpr int kTags = 8192;

  // `p2p` belongs to the caller and must outlive the backend; it may be null
  // for a job of one rank. `max_message_bytes`: where longer messages are cut,
  // for tests.
  P2PBackend(PointToPoint* p2p, int rank,
             size_t max_message_bytes = PointToPoint::kMaxBytes)
      : p2p_(p2p), rank_(rank), max_message_bytes_(max_message_bytes) {}

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
  std::vector<Block> free_;
  // Of the operations that have begun. One whose tag is taken waits.
  std::set<int> tags_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_P2P_BACKEND_H_
