// P2PTransport: the collectives on top of messages between pairs of ranks. What
// serves wherever nothing faster does, and the reference for what does.
//
// As DataTransport: called by the holder of the helm only.
#ifndef TF_HVD_RUNTIME_TRANSPORT_P2P_TRANSPORT_H_
#define TF_HVD_RUNTIME_TRANSPORT_P2P_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/status.h"
#include "runtime/transport/data_transport.h"
#include "runtime/transport/flight.h"
#include "runtime/transport/messenger.h"
#include "runtime/transport/rank_group.h"

namespace tf_hvd {

class P2PTransport final : public DataTransport {
 public:
  // `messenger` belongs to the caller and must outlive the transport; it may
  // be null for a job of one rank. `yield_at_once`: see World::oversubscribed.
  // `max_message_bytes`: where longer messages are cut, for tests.
  P2PTransport(Messenger* messenger, int rank, bool yield_at_once,
               size_t max_message_bytes = Messenger::kMaxBytes);

  Status Allreduce(const std::vector<int>& ranks,
                   const std::vector<Span>& spans, const ReduceOptions& options,
                   const Pump& pump) override;
  Status Allgather(const std::vector<int>& ranks, const void* mine,
                   const std::vector<int64_t>& bytes, void* output,
                   const Pump& pump) override;
  Status Broadcast(const std::vector<int>& ranks, int root, void* data,
                   int64_t bytes, const Pump& pump) override;
  Status Reducescatter(const std::vector<int>& ranks, const void* input,
                       const std::vector<int64_t>& counts, void* output,
                       const ReduceOptions& options, const Pump& pump) override;
  Status Alltoall(const std::vector<int>& ranks, const void* input,
                  const std::vector<int64_t>& send_bytes, void* output,
                  const std::vector<int64_t>& receive_bytes,
                  const Pump& pump) override;
  Progress progress() const override { return progress_; }
  bool memory_in_use() const override { return memory_in_use_; }

 private:
  // Runs `body` with a flight of its own and clears up if it fails.
  using Body = std::function<Status(Flight* flight, const RankGroup& group)>;
  Status Fly(const std::vector<int>& ranks, const Pump& pump, const Body& body);

  char* Stage(size_t bytes);

  Messenger* const messenger_;
  const int rank_;
  Progress progress_;
  const Flight::Options options_;
  std::unique_ptr<char[]> staging_;  // kept from call to call
  size_t staging_bytes_ = 0;
  bool memory_in_use_ = false;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_P2P_TRANSPORT_H_
