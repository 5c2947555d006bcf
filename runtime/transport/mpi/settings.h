// Settings that must be the same on all ranks. They are compared before any
// other communication, which may depend on them. Each rank also sends its host
// name, for the text.
#ifndef TF_HVD_RUNTIME_TRANSPORT_MPI_SETTINGS_H_
#define TF_HVD_RUNTIME_TRANSPORT_MPI_SETTINGS_H_

#include <string>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "runtime/transport/mpi/session.h"

namespace tf_hvd {

// Ok if all ranks have equal settings, except those that may differ. Otherwise
// the differences, with names, ranks and values; a missing name counts as
// "(unknown)". Pure.
Status DescribeDifferences(const std::vector<Settings>& of_ranks,
                           const std::vector<std::string>& hosts);

// Prefix of names that may differ between ranks, or be missing, but hardly
// intentionally: the program's text, the versions of its packages.
inline constexpr char kMayDiffer = '?';

// The differences of those, as a warning; empty if there are none. Pure.
std::string DescribeDoubts(const std::vector<Settings>& of_ranks,
                           const std::vector<std::string>& hosts);

// The same on all ranks. `hosts` receives the host name of each rank and, on
// rank 0, `doubts` the text of DescribeDoubts. Collective.
Status CompareSettings(const MpiSession& session, const Settings& mine,
                       std::vector<std::string>* hosts, std::string* doubts);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_MPI_SETTINGS_H_
