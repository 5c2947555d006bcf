// MpiMessenger: point-to-point messages as MPI_Isend and MPI_Irecv.
//
// All collectives are posted in one linear order on all ranks, and MPI keeps
// the order of messages between two ranks, so one tag serves them all.
#ifndef TF_HVD_RUNTIME_TRANSPORT_MPI_MESSENGER_H_
#define TF_HVD_RUNTIME_TRANSPORT_MPI_MESSENGER_H_

#include <cstddef>
#include <vector>

#include "runtime/status.h"
#include "runtime/transport/messenger.h"
#include "runtime/transport/mpi_api.h"

namespace tf_hvd {

class MpiMessenger : public Messenger {
 public:
  // `api` must outlive this; `comm` has no other traffic with this tag.
  MpiMessenger(const MpiApi* api, MpiHandle comm, int tag)
      : api_(api), comm_(comm), tag_(tag) {}

  Status Send(int peer, const void* data, size_t bytes,
              Ticket* ticket) override;
  Status Receive(int peer, void* data, size_t bytes, Ticket* ticket) override;
  Status Test(Ticket ticket, bool* done) override;
  bool Abandon(Ticket ticket) override;

 private:
  struct Operation {
    MpiHandle request{nullptr};
    bool receives = false;
    size_t bytes = 0;
    // MPI has taken the request back, with an error; or what came was wrong.
    bool failed = false;
    bool arrived = false;
  };

  Ticket Keep(const Operation& operation);
  void Forget(Ticket ticket);

  const MpiApi* const api_;
  const MpiHandle comm_;
  const int tag_;
  std::vector<Operation> operations_;  // ticket - 1 is the place
  std::vector<Ticket> free_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_MPI_MESSENGER_H_
