// The probes of device_probes.cc, by subject. Each adds its figures to
// `figures`, which are printed even if an error ends the probe.
#ifndef TF_HVD_TESTS_GPU_DEVICE_PROBES_H_
#define TF_HVD_TESTS_GPU_DEVICE_PROBES_H_

#include "base/status.h"
#include "tests/gpu/probe_side.h"
#include "tests/gpu/program_options.h"

namespace tf_hvd {

// Cost of cuEventQuery and cuStreamQuery, and their effect on the launches of
// another thread.
Status ProbeQueries(const ProbeSide& side, Figures* figures);
// Delay of a host function after a kernel's end, compared with polling.
Status ProbeHostFunction(const ProbeSide& side, Figures* figures);
// Delay of 24 bytes that are copied while another stream copies much data, and
// of a kernel that reads them from pinned memory instead.
Status ProbeCopies(const ProbeSide& side, Figures* figures);
// Functions that do not return while a kernel runs.
Status ProbeWaits(const ProbeSide& side, Figures* figures);

// Time from ncclAllReduce until the communicator is ready for the next call,
// blocking and nonblocking. Called in one process for each of two ranks, which
// are joined by the socket `peer`.
Status ProbeCalls(const ProgramOptions& options, const GpuLibraries& libraries,
                  int rank, int peer, Figures* figures);

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_DEVICE_PROBES_H_
