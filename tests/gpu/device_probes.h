// The probes of device_probes.cc, by what they ask. Each adds what it has found
// to `figures`, which are told even where an error ends it.
#ifndef TF_HVD_TESTS_GPU_DEVICE_PROBES_H_
#define TF_HVD_TESTS_GPU_DEVICE_PROBES_H_

#include "base/status.h"
#include "tests/gpu/probe_side.h"
#include "tests/gpu/program_options.h"

namespace tf_hvd {

// What cuEventQuery and cuStreamQuery cost, and what they do to the launches of
// another thread.
Status ProbeQueries(const ProbeSide& side, Figures* figures);
// When a host function is called after a kernel's end, against polling.
Status ProbeHostFunction(const ProbeSide& side, Figures* figures);
// When 24 bytes arrive that are copied while another stream copies many; and
// when a kernel has read them from pinned memory instead.
Status ProbeCopies(const ProbeSide& side, Figures* figures);
// Which functions do not return while a kernel runs.
Status ProbeWaits(const ProbeSide& side, Figures* figures);

// The time from ncclAllReduce until the communicator is ready for more,
// blocking and not. Called in a process for each of two ranks, which `peer`, a
// socket, joins.
Status ProbeCalls(const ProgramOptions& options, const GpuLibraries& libraries,
                  int rank, int peer, Figures* figures);

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_DEVICE_PROBES_H_
