// MpiPointToPoint: point-to-point messages as MPI_Isend and MPI_Irecv. MPI
// preserves the order of messages with one tag between two ranks.
#ifndef TF_HVD_RUNTIME_TRANSPORT_MPI_POINT_TO_POINT_H_
#define TF_HVD_RUNTIME_TRANSPORT_MPI_POINT_TO_POINT_H_

#include <cstddef>
#include <vector>

#include "base/status.h"
#include "runtime/contract/point_to_point.h"
#include "runtime/transport/mpi_library/api.h"

namespace tf_hvd {

class MpiPointToPoint : public PointToPoint {
 public:
  // `api` must outlive this object; `comm` has no other traffic with this tag
  // and those after it. (MPI supports tags up to 32767 at least.)
  MpiPointToPoint(const MpiApi* api, MpiHandle comm, int first_tag)
      : api_(api), comm_(comm), first_tag_(first_tag) {}

  Status Send(int peer, int tag, const void* data, size_t bytes,
              MessageHandle* handle) override;
  Status Receive(int peer, int tag, void* data, size_t bytes,
                 MessageHandle* handle) override;
  Status Test(MessageHandle handle, bool* done) override;
  bool Abandon(MessageHandle handle) override;

 private:
  struct Operation {
    MpiHandle request{nullptr};
    bool receives = false;
    size_t bytes = 0;
    // MPI has freed the request, with an error; or the message was invalid.
    bool failed = false;
    bool arrived = false;
  };

  MessageHandle Keep(const Operation& operation);
  void Forget(MessageHandle handle);

  const MpiApi* const api_;
  const MpiHandle comm_;
  const int first_tag_;
  std::vector<Operation> operations_;  // index: handle - 1
  std::vector<MessageHandle> free_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_MPI_POINT_TO_POINT_H_
