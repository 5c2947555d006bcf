// MpiAllreduceBackend: allreduces that the MPI library does by itself
// (MPI_Iallreduce), for switches that add in the network. What order it sums
// in, and whether that is the same in every run, is the library's matter.
//
// As Backend: holder of the progress lock only.
#ifndef TF_HVD_RUNTIME_TRANSPORT_MPI_ALLREDUCE_H_
#define TF_HVD_RUNTIME_TRANSPORT_MPI_ALLREDUCE_H_

#include <cstddef>
#include <memory>

#include "runtime/base/status.h"
#include "runtime/transport/mpi_library/api.h"
#include "runtime/transport/operation.h"

namespace tf_hvd {

class MpiAllreduceBackend final : public Backend {
 public:
  // `comm` is of the ranks of the operations and has no other traffic; `api`
  // outlives the backend.
  MpiAllreduceBackend(const MpiApi* api, MpiHandle comm)
      : api_(api), comm_(comm) {}

  // One span, in place, of the world, of types and operations that MPI has.
  std::string_view name() const override { return "mpi"; }
  bool Serves(const OperationSpec& spec) const override;
  // Posts the operation at once: MPI matches those of a communicator by their
  // order.
  Status Make(OperationSpec spec,
              std::unique_ptr<Operation>* operation) override;
  size_t window() const override { return 4; }

 private:
  const MpiApi* const api_;
  const MpiHandle comm_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_MPI_ALLREDUCE_H_
