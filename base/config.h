// Config: every setting that comes from the environment, read once at init.
// config.cc holds the only table (name, default, meaning) and the only getenv
// call; docs/config.md is generated from the table.
#ifndef TF_HVD_BASE_CONFIG_H_
#define TF_HVD_BASE_CONFIG_H_

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "base/types.h"

namespace tf_hvd {

// How a rank writes to its slots in shared memory: by the method that is
// measured to be faster, always by one method, or alternating between both.
enum class SlotStores { kMeasured, kOrdinary, kStreaming, kAlternating };

struct Config {
  // Total size in bytes up to which requests of one batch are fused; 0: never.
  int64_t fusion_threshold = 64 << 20;
  int64_t stall_warn_ns = 30'000'000'000;     // 0: no stall check at all
  int64_t stall_fail_ns = 1'800'000'000'000;  // 0: warn only
  // The failure limit when a missing rank cannot arrive: it does not answer, or
  // all ranks wait for each other. Also applies to init. Equals stall_fail_ns
  // if the user sets that limit.
  int64_t stall_stuck_ns = 300'000'000'000;
  // A caller runs the cycle itself for at most this long.
  int64_t spin_ns = 50'000;
  // 0: detect the nodes; k: pretend that each node has k ranks (for tests).
  int ranks_per_node = 0;
  // True if tensors move through shared memory inside a node; false: through
  // MPI.
  bool node_data_shm = true;
  SlotStores slot_stores = SlotStores::kMeasured;
  std::string mpi_library;  // path of the libmpi to load; empty: find one
  // Paths of the CUDA driver and NCCL to load; empty: find them.
  std::string cuda_library;
  std::string nccl_library;
  bool use_nccl = true;
  // Collectives that move GPU tensors through MPI even if NCCL is available.
  std::set<OpKind> gpu_by_mpi;
  LogLevel log_level = LogLevel::kWarning;
  std::string dump_dir;  // folder for recordings of failed jobs; empty: do not
                         // save them
  bool standalone = false;  // run as rank 0 of 1, ignoring the launcher
  std::string timeline;     // the file that init starts writing; empty: none
  bool timeline_marks_cycles = false;
  int64_t timeline_limit = 0;  // size limit per rank in bytes; 0: no limit
  std::string metrics;         // the file that init starts writing; empty: none
};

// Reads the environment. An invalid value gives an InvalidArgument that names
// the variable, the value and the expected form.
Status ReadConfig(Config* config);

// The NCCL settings in the environment that affect how ranks exchange data, as
// lines of "NAME=value". Ranks with different values would block each other
// indefinitely. Settings that apply to one machine only, such as its networks,
// are excluded.
std::string NcclSettings();

// The launcher's description of this process, from the environment.
struct LaunchInfo {
  enum class Family { kNone, kOpenMpi, kMpich, kSlurm };
  Family family = Family::kNone;
  int size = 1;  // number of ranks; 1 without a launcher
  int rank = 0;
  std::string library_hint;  // directory of the launcher's own libraries
  // The mark of the rank that started this process, if any.
  std::string rank_mark;
  std::string job;  // the launcher's name for the job; empty if it has none
  // The file for this rank's recording, which `tf_hvd run` reads, and the
  // launcher's name for the job; -1: none.
  int recording = -1;
  std::string recorded_job;
  bool slurm_pmi = false;  // srun provides PMI-1 and PMI-2 (--mpi=pmi2)
  // Address of the srun that started this process; empty and 0 without one.
  std::string srun_address;
  int srun_port = 0;
};

Status ReadLaunchInfo(LaunchInfo* info);

// Selects MPICH's network library through the environment, which MPICH reads in
// MPI_Init. Does nothing if the user has selected one.
//
// With UCX, a rank of MPICH 5.0 publishes 4096 bytes: its address and whatever
// follows it in memory. Slurm (22.05) reads at most 1024 bytes of such a line,
// so MPI_Init fails. With libfabric a rank publishes 16 bytes.
void PreferLibfabricInMpich();

// Sets Open MPI's TCP protocol to "send" through the environment, which Open
// MPI reads in MPI_Init. Does nothing if the user has set it.
//
// The default is "put": a long message is announced, requested and only then
// written. With traffic in both directions, announcements and requests queue
// behind the data. With one rank on each of two nodes this costs a third of the
// bandwidth.
void SendByTcpInOpenMpi();

// The settings in the environment that must be the same on all ranks, by name.
using Settings = std::vector<std::pair<std::string, std::string>>;
Settings EqualSettings();

// The table as Markdown, as docs/config.md shows it.
std::string ConfigMarkdown();

}  // namespace tf_hvd

#endif  // TF_HVD_BASE_CONFIG_H_
