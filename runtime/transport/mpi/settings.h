// Settings that must be equal on all ranks: compared before anything else is
// said between them, because what is said may depend on them. Each rank also
// tells on which host it is, for the text.
#ifndef TF_HVD_RUNTIME_TRANSPORT_MPI_SETTINGS_H_
#define TF_HVD_RUNTIME_TRANSPORT_MPI_SETTINGS_H_

#include <string>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "runtime/transport/mpi/session.h"

namespace tf_hvd {

// Ok if all ranks have the same of what must be equal, else the differences,
// with names, ranks and values; a name that a rank does not have counts as
// "(unknown)". Pure.
Status DescribeDifferences(const std::vector<Settings>& of_ranks,
                           const std::vector<std::string>& hosts);

// What begins a name of which ranks may have different values, or none, though
// hardly on purpose: the text of the program, the versions of its packages.
inline constexpr char kMayDiffer = '?';

// The differences of those, for a warning; empty if there are none. Pure.
std::string DescribeDoubts(const std::vector<Settings>& of_ranks,
                           const std::vector<std::string>& hosts);

// The same on all ranks; `hosts` gets the name of each rank's, and on rank 0
// `doubts` what DescribeDoubts says. Collective.
Status CompareSettings(const MpiSession& session, const Settings& mine,
                       std::vector<std::string>* hosts, std::string* doubts);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_MPI_SETTINGS_H_
