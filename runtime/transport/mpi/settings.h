// Settings that must be equal on all ranks: compared before anything else is
// said between them, because what is said may depend on them. Each rank also
// tells on which host it is, for the text.
#ifndef TF_HVD_RUNTIME_TRANSPORT_MPI_SETTINGS_H_
#define TF_HVD_RUNTIME_TRANSPORT_MPI_SETTINGS_H_

#include <string>
#include <vector>

#include "runtime/base/config.h"
#include "runtime/base/status.h"
#include "runtime/transport/mpi/session.h"

namespace tf_hvd {

// Ok if all ranks have the same, else the differences, with names, ranks and
// values; a name that a rank does not have counts as "(unknown)". Pure.
Status DescribeDifferences(const std::vector<Settings>& of_ranks,
                           const std::vector<std::string>& hosts);

// The same on all ranks; `hosts` gets the name of each rank's. Collective.
Status CompareSettings(const MpiSession& session, const Settings& mine,
                       std::vector<std::string>* hosts);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_MPI_SETTINGS_H_
