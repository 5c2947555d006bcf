// Config: every setting that comes from the environment, read once at init.
// config.cc holds the one table (name, default, meaning) and the only getenv;
// docs/config.md is generated from it.
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

// How a rank writes to its slots in shared memory: as is measured to be
// cheaper, or in one way, or in another way each time.
enum class SlotStores { kMeasured, kOrdinary, kStreaming, kAlternating };

struct Config {
  // Bytes that requests of one batch may have together to be fused; 0: never.
  int64_t fusion_threshold = 64 << 20;
  int64_t stall_warn_ns = 30'000'000'000;   // 0: no stall check at all
  int64_t stall_fail_ns = 300'000'000'000;  // 0: warn only
  // A caller runs the cycle itself for so long at most.
  int64_t spin_ns = 50'000;
  // 0: find the nodes; k: pretend that each node has k ranks (for tests).
  int ranks_per_node = 0;
  // Whether tensors move through shared memory inside a node, or by MPI.
  bool node_data_shm = true;
  SlotStores slot_stores = SlotStores::kMeasured;
  std::string mpi_library;  // path of the libmpi to open; empty: find one
  // The CUDA driver and NCCL to open, by path; empty: find them.
  std::string cuda_library;
  std::string nccl_library;
  bool use_nccl = true;
  // Of these, tensors on GPUs move by MPI where NCCL could move them too.
  std::set<OpKind> gpu_by_mpi;
  LogLevel log_level = LogLevel::kWarning;
  std::string dump_dir;  // where recordings of failed jobs go; empty: nowhere
  bool alone = false;    // rank 0 of 1, whatever the launcher says
  std::string timeline;  // the file that init begins; empty: none
  bool timeline_marks_cycles = false;
  int64_t timeline_limit = 0;  // bytes of a rank; 0: none
  std::string metrics;         // the file that init begins; empty: none
};

// Reads the environment. A value that is not one is an InvalidArgument that
// names the variable, the value and what is expected.
Status ReadConfig(Config* config);

// NCCL's settings in the environment by which it chooses how ranks exchange
// data, "NAME=value" in lines: with different ones they wait for each other for
// ever. What a machine alone is told, such as its networks, is none of them.
std::string NcclSettings();

// What the launcher that started this process says, from its environment.
struct LaunchInfo {
  enum class Family { kNone, kOpenMpi, kMpich, kSlurm };
  Family family = Family::kNone;
  int size = 1;  // the launcher's count; 1 without a launcher
  int rank = 0;
  std::string library_hint;  // directory of the launcher's own libraries
  std::string rank_mark;     // what the rank that started this process, if one
                             // has, wrote of itself
  std::string job;           // what the launcher calls it; empty if nothing
  // A file for this rank's recording, which `tf_hvd run` looks into, and what
  // that calls the job; -1: none.
  int recording = -1;
  std::string recorded_job;
  bool slurm_pmi = false;  // srun offers PMI-1 and PMI-2 (--mpi=pmi2)
  // Where the srun that started this process listens; empty and 0 without one.
  std::string srun_address;
  int srun_port = 0;
};

Status ReadLaunchInfo(LaunchInfo* info);

// Writes into the environment which network library MPICH is to use, if the
// user has not: MPICH reads it in MPI_Init.
//
// By UCX, a rank of MPICH 5.0 publishes 4096 bytes: its address and whatever
// comes after that in memory. The lines are longer than the 1024 bytes that
// Slurm (22.05) reads of one, and MPI_Init fails. By libfabric it is 16 bytes.
void PreferLibfabricInMpich();

// Writes into the environment that Open MPI sends over TCP, if the user has not
// said how it shall: Open MPI reads it in MPI_Init.
//
// By itself it "puts": a long message is announced, asked for and only then
// written, and where data goes both ways announcement and request wait behind
// it. With one rank on each of two nodes that costs a third of the link.
void SendByTcpInOpenMpi();

// The settings in the environment that must be equal on all ranks, by name.
using Settings = std::vector<std::pair<std::string, std::string>>;
Settings EqualSettings();

// The table as Markdown, as docs/config.md shows it.
std::string ConfigMarkdown();

}  // namespace tf_hvd

#endif  // TF_HVD_BASE_CONFIG_H_
