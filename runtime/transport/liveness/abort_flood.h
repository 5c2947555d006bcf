// AbortFlood: passes abort records between nodes (agreement.md, section 8). A
// record goes to the leaders that are this node's neighbours in the tree and in
// a ring of all nodes. Each node forwards it unless it has already sent one at
// least as small. Calls MPI, so only for the holder of the progress lock.
#ifndef TF_HVD_RUNTIME_TRANSPORT_LIVENESS_ABORT_FLOOD_H_
#define TF_HVD_RUNTIME_TRANSPORT_LIVENESS_ABORT_FLOOD_H_

#include <memory>
#include <optional>
#include <vector>

#include "runtime/contract/world.h"
#include "runtime/transport/mpi_library/api.h"
#include "runtime/transport/segment/abort_board.h"

namespace tf_hvd {

// The leaders that the node of `topology.rank` sends to.
std::vector<int> FloodTargets(const Topology& topology);

class AbortFlood {
 public:
  // `api` must outlive this object. Messages may come from any rank.
  AbortFlood(const MpiApi* api, MpiHandle comm, int tag,
             std::vector<int> targets);

  // Starts receiving; on a leader only.
  void Listen();

  void Send(const AbortRecord& record);

  // The record that has arrived, if any. Also makes progress on the sends.
  std::optional<AbortRecord> Receive();

  // Before MPI_Finalize: cancels the receive. Call until true.
  bool Stop();

 private:
  struct Message {
    uint32_t error_class;
    int32_t rank;
    char text[kAbortTextBytes];
  };
  struct Sending {
    MpiHandle request;
    std::unique_ptr<Message> message;
  };

  const MpiApi* const api_;
  const MpiHandle comm_;
  const int tag_;
  const std::vector<int> targets_;

  bool listening_ = false;
  bool stopping_ = false;
  MpiHandle receive_{nullptr};
  Message arriving_;
  std::vector<Sending> sends_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_LIVENESS_ABORT_FLOOD_H_
