#include "base/config.h"

#include <cmath>
#include <cstdlib>
#include <limits>

#include "base/contract.h"

namespace tf_hvd {
namespace {

// The only access to the environment. Unset and empty are equivalent.
std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

// False if the value is invalid.
bool ParseInteger(const std::string& text, int64_t low, int64_t high,
                  int64_t* value) {
  int64_t number = 0;
  if (text.empty() || text.size() > 18) return false;
  for (const char digit : text) {
    if (digit < '0' || digit > '9') return false;
    number = number * 10 + (digit - '0');
  }
  if (number < low || number > high) return false;
  *value = number;
  return true;
}

bool ParseNanoseconds(const std::string& text, double unit_ns,
                      int64_t* nanoseconds, double most_ns = 1e18) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != '\0') return false;
  if (!std::isfinite(number) || number < 0 || number * unit_ns > most_ns) {
    return false;
  }
  *nanoseconds = static_cast<int64_t>(std::llround(number * unit_ns));
  return true;
}

// 0 or 1.
bool ParseSwitch(const std::string& text, bool* on) {
  int64_t number = 0;
  if (!ParseInteger(text, 0, 1, &number)) return false;
  *on = number == 1;
  return true;
}

template <std::string Config::*kWhere>
bool TakeText(const std::string& text, Config* config) {
  config->*kWhere = text;
  return true;
}

bool ParseStallDisable(const std::string& text, Config* config) {
  bool disabled = false;
  if (!ParseSwitch(text, &disabled)) return false;
  if (disabled) config->stall_warn_ns = 0;
  return true;
}

bool ParseAlone(const std::string& text, Config* config) {
  return ParseSwitch(text, &config->standalone);
}

bool ParseTimeline(const std::string& text, Config* config) {
  // Horovod's word for: no timeline before start_timeline().
  config->timeline = text == "DYNAMIC" ? "" : text;
  return true;
}

bool ParseTimelineMarks(const std::string& text, Config* config) {
  return ParseSwitch(text, &config->timeline_marks_cycles);
}

bool ParseLogSetting(const std::string& given, Config* config) {
  // Horovod's launcher writes levels in capitals.
  std::string text = given;
  for (char& letter : text) {
    if (letter >= 'A' && letter <= 'Z') letter += 'a' - 'A';
  }
  return ParseLogLevel(text, &config->log_level);
}

bool ParseSlotStores(const std::string& text, Config* config) {
  constexpr std::pair<const char*, SlotStores> kNames[] = {
      {"measured", SlotStores::kMeasured},
      {"ordinary", SlotStores::kOrdinary},
      {"streaming", SlotStores::kStreaming},
      {"alternating", SlotStores::kAlternating},
  };
  for (const auto& [name, stores] : kNames) {
    if (text != name) continue;
    config->slot_stores = stores;
    return true;
  }
  return false;
}

// NCCL or MPI, in Horovod's capitals: for GPU tensors of one kind of
// collective, or of all kinds.
bool ParseGpuWayOf(OpKind kind, const std::string& text, Config* config) {
  config->gpu_by_mpi.erase(kind);
  if (text == "MPI") config->gpu_by_mpi.insert(kind);
  return text == "NCCL" || text == "MPI";
}

template <OpKind kKind>
bool ParseGpuWay(const std::string& text, Config* config) {
  return ParseGpuWayOf(kKind, text, config);
}

bool ParseGpuWays(const std::string& text, Config* config) {
  bool known = true;
  for (const OpKind kind : TensorKinds()) {
    known = ParseGpuWayOf(kind, text, config);
  }
  return known;
}

constexpr char kNcclOrMpi[] = "NCCL or MPI";
constexpr char kAsGpuOperations[] =
    "Like HOROVOD_GPU_OPERATIONS, but for this collective only. Unset: the "
    "value of HOROVOD_GPU_OPERATIONS.";

struct Variable {
  const char* name;
  const char* fallback;  // as documented; the actual default is in Config
  const char* expected;
  const char* meaning;
  bool (*set)(const std::string& text, Config* config);
  bool equal = false;  // must be the same on all ranks; init compares it
};

// The only table of settings. HOROVOD_STALL_CHECK_DISABLE must follow the time
// that it overrides.
constexpr Variable kVariables[] = {
    {"HOROVOD_FUSION_THRESHOLD", "67108864", "a number of bytes",
     "Maximum size of a fused operation. Requests that become ready together "
     "are fused up to this size. 0: no fusion.",
     [](const std::string& text, Config* config) {
       return ParseInteger(text, 0, std::numeric_limits<int64_t>::max(),
                           &config->fusion_threshold);
     },
     true},
    {"HOROVOD_STALL_CHECK_TIME_SECONDS", "30", "a number of seconds",
     "Time until a warning names the ranks that have not submitted a request "
     "or called init(). 0: no warning, and a stall never ends the job.",
     [](const std::string& text, Config* config) {
       return ParseNanoseconds(text, 1e9, &config->stall_warn_ns);
     }},
    {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "1800", "a number of seconds",
     "Time until a stalled job fails on every rank. 0: never. If unset, the "
     "limit is 300 s in init(), if a rank does not answer, and if all ranks "
     "wait for each other. A value that you set applies to these cases, too. "
     "Must be more than HOROVOD_STALL_CHECK_TIME_SECONDS.",
     [](const std::string& text, Config* config) {
       const bool is_one = ParseNanoseconds(text, 1e9, &config->stall_fail_ns);
       config->stall_stuck_ns = config->stall_fail_ns;
       return is_one;
     }},
    {"HOROVOD_STALL_CHECK_DISABLE", "0", "0 or 1",
     "1: disable the stall warning and the stall limit.", ParseStallDisable},
    {"HOROVOD_LOG_LEVEL", "warning",
     "trace, debug, info, warning, error or fatal",
     "Lowest level of messages to print. At level info, rank 0 logs how "
     "tensors move between the ranks.",
     ParseLogSetting},
    {"TF_HVD_SPIN_MICROSECONDS", "50",
     "a number of microseconds, 10000000 at most",
     "How long a thread in a collective call polls for messages before the "
     "background thread takes over. An eager call polls as long as data "
     "moves, and for 100 times this time while no data moves.",
     [](const std::string& text, Config* config) {
       return ParseNanoseconds(text, 1e3, &config->spin_ns, 1e10);
     }},
    {"TF_HVD_MPI_LIBRARY", "", "a path",
     "Path of the MPI library (libmpi.so) to load. Unset: the library of the "
     "launcher that started the job, or else the first one found in the Python "
     "environment or the system.",
     TakeText<&Config::mpi_library>},
    {"TF_HVD_RANKS_PER_NODE", "0", "a number of ranks",
     "For tests on one machine: treats every N ranks as a separate machine "
     "that is reached through MPI. 0: detect the machines.",
     [](const std::string& text, Config* config) {
       int64_t ranks = 0;
       if (!ParseInteger(text, 0, 1 << 30, &ranks)) return false;
       config->ranks_per_node = static_cast<int>(ranks);
       return true;
     },
     true},
    {"TF_HVD_NODE_DATA", "shm", "shm or mpi",
     "How tensors move between the ranks on one machine: through shared "
     "memory (shm) or as MPI messages (mpi). Shared memory needs about 4 MiB "
     "in /dev/shm for each rank on the machine, or 1 MiB with more than eight "
     "ranks. MPI messages are slower. They also disable the two-level "
     "algorithm across machines, which changes the order of sums.",
     [](const std::string& text, Config* config) {
       config->node_data_shm = text == "shm";
       return text == "shm" || text == "mpi";
     },
     true},
    {"TF_HVD_SLOT_STORES", "measured",
     "measured, ordinary, streaming or alternating",
     "Kind of stores that a rank uses to write to shared memory: ordinary "
     "stores, streaming stores, which bypass the caches, or both alternately. "
     "By default, a rank measures which kind is faster at run time. For "
     "benchmarks and tests. Results are bit-identical.",
     ParseSlotStores},
    {"TF_HVD_NCCL", "1", "0 or 1",
     "1: use NCCL for GPU tensors if it is installed. 0: do not use NCCL. See "
     "HOROVOD_GPU_OPERATIONS.",
     [](const std::string& text, Config* config) {
       config->use_nccl = text == "1";
       return text == "0" || text == "1";
     },
     true},
    {"HOROVOD_GPU_OPERATIONS", "NCCL", kNcclOrMpi,
     "How GPU tensors move. NCCL: through NCCL if it is installed, otherwise "
     "through MPI. MPI: through MPI, with a copy in host memory unless the "
     "MPI library is CUDA-aware. In Horovod, this is a build option.",
     ParseGpuWays, true},
    {"HOROVOD_GPU_ALLREDUCE", "", kNcclOrMpi, kAsGpuOperations,
     ParseGpuWay<OpKind::kAllreduce>, true},
    {"HOROVOD_GPU_ALLGATHER", "", kNcclOrMpi, kAsGpuOperations,
     ParseGpuWay<OpKind::kAllgather>, true},
    {"HOROVOD_GPU_BROADCAST", "", kNcclOrMpi, kAsGpuOperations,
     ParseGpuWay<OpKind::kBroadcast>, true},
    {"HOROVOD_GPU_ALLTOALL", "", kNcclOrMpi, kAsGpuOperations,
     ParseGpuWay<OpKind::kAlltoall>, true},
    {"HOROVOD_GPU_REDUCESCATTER", "", kNcclOrMpi, kAsGpuOperations,
     ParseGpuWay<OpKind::kReducescatter>, true},
    {"TF_HVD_NCCL_LIBRARY", "", "a path",
     "Path of the NCCL library (libnccl.so.2) to load. Unset: the library "
     "that TensorFlow has loaded, or else the first one found in the Python "
     "environment or the system.",
     TakeText<&Config::nccl_library>},
    {"TF_HVD_CUDA_LIBRARY", "", "a path",
     "For tests: path of the CUDA driver library (libcuda.so.1) to load. "
     "Unset: the system's library.",
     TakeText<&Config::cuda_library>},
    {"TF_HVD_DUMP_DIR", "", "a path",
     "Folder for the flight recordings of failed jobs. Each job gets a "
     "subfolder that contains a file rank.N for each rank. Unset: recordings "
     "are not saved.",
     TakeText<&Config::dump_dir>},
    {"HOROVOD_TIMELINE", "",
     "the path of a .json file, which ui.perfetto.dev opens, or DYNAMIC",
     "File for the timeline. Each rank writes a separate file: trace.json, "
     "trace.rank-1.json and so on. DYNAMIC, or unset: no timeline until "
     "start_timeline() is called.",
     ParseTimeline},
    {"HOROVOD_TIMELINE_MARK_CYCLES", "0", "0 or 1",
     "1: mark in the timeline when the ranks agreed on the order of calls. 0: "
     "no marks.",
     ParseTimelineMarks},
    {"TF_HVD_TIMELINE_LIMIT", "0", "a number of bytes",
     "Maximum size of each rank's timeline. When a file reaches half of "
     "this size, the rank starts a new file and keeps only the previous one. "
     "0: no limit.",
     [](const std::string& text, Config* config) {
       return ParseInteger(text, 0, std::numeric_limits<int64_t>::max(),
                           &config->timeline_limit);
     }},
    {"TF_HVD_METRICS", "", "a path",
     "File for the totals of time and bytes in collectives, written every 5 s "
     "as OpenMetrics text. Each rank writes a separate file: metrics.prom, "
     "metrics.rank-1.prom and so on. Unset: no file.",
     TakeText<&Config::metrics>},
    {kAloneVariable, "0", "0 or 1",
     "1: this process runs as a single-rank job and ignores the launcher's "
     "settings. For programs that a rank starts. 0: join the launcher's job.",
     ParseAlone},
};

// NCCL's settings, by its documentation, for algorithms, protocols, channels
// and message sizes.
constexpr const char* kNcclAlike[] = {
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_CTAS",
    "NCCL_MAX_CTAS",
    "NCCL_NTHREADS",
    "NCCL_BUFFSIZE",
    "NCCL_LL_BUFFSIZE",
    "NCCL_LL128_BUFFSIZE",
    "NCCL_P2P_NET_CHUNKSIZE",
    "NCCL_NCHANNELS_PER_NET_PEER",
    "NCCL_NET",
    "NCCL_NET_OVERHEAD",
    "NCCL_COLLNET_ENABLE",
    "NCCL_NVLS_ENABLE",
    "NCCL_MNNVL_ENABLE",
    "NCCL_PXN_DISABLE",
};

Status NotA(const char* name, const std::string& value, const char* expected) {
  return InvalidArgument(std::string(name) + "=" + value +
                         " in the environment: expected " + expected);
}

// Reads the number of ranks and the rank that a launcher has set.
Status ReadPair(const char* size_name, const char* rank_name,
                LaunchInfo::Family family, LaunchInfo* info) {
  const std::string size_text = Environment(size_name);
  const std::string rank_text = Environment(rank_name);
  int64_t size = 0;
  int64_t rank = 0;
  if (!ParseInteger(size_text, 1, 1 << 30, &size)) {
    return NotA(size_name, size_text,
                "the number of ranks (set by the launcher)");
  }
  if (!ParseInteger(rank_text, 0, size - 1, &rank)) {
    const std::string expected = std::string("a rank from 0 to ") + size_name +
                                 " - 1 = " + std::to_string(size - 1) +
                                 " (set by the launcher)";
    return NotA(rank_name, rank_text, expected.c_str());
  }
  info->family = family;
  info->size = static_cast<int>(size);
  info->rank = static_cast<int>(rank);
  return Status::Ok();
}

bool IsSet(const char* name) { return !Environment(name).empty(); }

// The launcher's name for the job; empty if it has none.
std::string ReadJob() {
  for (const char* name : {"PMIX_NAMESPACE", "PMI_JOBID"}) {
    if (std::string job = Environment(name); !job.empty()) return job;
  }
  if (!IsSet("SLURM_STEP_ID")) return "";
  return Environment("SLURM_JOB_ID") + "." + Environment("SLURM_STEP_ID");
}

// A file number and a name, such as "5:tf_hvd-x7k2".
void ReadRecording(LaunchInfo* info) {
  info->job = ReadJob();
  const std::string text = Environment(kRecording);
  const size_t colon = text.find(':');
  int64_t file = -1;
  if (colon == std::string::npos ||
      !ParseInteger(text.substr(0, colon), 3, 1 << 30, &file)) {
    return;
  }
  info->recording = static_cast<int>(file);
  info->recorded_job = text.substr(colon + 1);
}

}  // namespace

Status ReadConfig(Config* config) {
  *config = Config();
  for (const Variable& variable : kVariables) {
    const std::string text = Environment(variable.name);
    if (text.empty()) continue;
    if (!variable.set(text, config)) {
      return NotA(variable.name, text, variable.expected);
    }
  }
  if (config->stall_fail_ns != 0 &&
      config->stall_fail_ns <= config->stall_warn_ns) {
    return InvalidArgument(
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS must be more than "
        "HOROVOD_STALL_CHECK_TIME_SECONDS, but they are " +
        std::to_string(static_cast<double>(config->stall_fail_ns) / 1e9) +
        " and " +
        std::to_string(static_cast<double>(config->stall_warn_ns) / 1e9));
  }
  // A job never fails before its stall was warned about.
  if (config->stall_stuck_ns <= config->stall_warn_ns) {
    config->stall_stuck_ns = config->stall_fail_ns;
  }
  return Status::Ok();
}

std::string NcclSettings() {
  std::string settings;
  for (const char* name : kNcclAlike) {
    // NCCL distinguishes empty from unset.
    const char* const value = std::getenv(name);
    if (value != nullptr) settings += std::string(name) + "=" + value + "\n";
  }
  return settings;
}

Status ReadLaunchInfo(LaunchInfo* info) {
  using Family = LaunchInfo::Family;
  *info = LaunchInfo();
  if (Environment(kAloneVariable) == "1") return Status::Ok();
  ReadRecording(info);
  info->rank_mark = Environment(kStartedBy);
  // Inside a Slurm allocation mpirun and mpiexec may start their daemons with
  // srun, so their own variables take precedence over Slurm's.
  if (IsSet("OMPI_COMM_WORLD_SIZE") || IsSet("OMPI_COMM_WORLD_RANK")) {
    const std::string prefix = Environment("OPAL_PREFIX");
    if (!prefix.empty()) info->library_hint = prefix + "/lib";
    return ReadPair("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
                    Family::kOpenMpi, info);
  }
  const bool pmi = IsSet("PMI_SIZE") || IsSet("PMI_RANK");
  // srun may provide PMI to either family, but only hydra also sets local
  // ranks.
  if (pmi && (IsSet("MPI_LOCALNRANKS") || !IsSet("SLURM_STEP_ID"))) {
    return ReadPair("PMI_SIZE", "PMI_RANK", Family::kMpich, info);
  }
  // salloc and sbatch set SLURM_NTASKS as well, but only srun creates a step.
  if (IsSet("SLURM_STEP_ID") && IsSet("SLURM_PROCID")) {
    const char* count =
        IsSet("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
    info->slurm_pmi = IsSet("PMI_FD");
    info->srun_address = Environment("SLURM_LAUNCH_NODE_IPADDR");
    info->srun_port = std::atoi(Environment("SLURM_SRUN_COMM_PORT").c_str());
    return ReadPair(count, "SLURM_PROCID", Family::kSlurm, info);
  }
  return Status::Ok();
}

void PreferLibfabricInMpich() {
  // The last one takes precedence.
  for (const char* name :
       {"MPICH_CH4_NETMOD", "MPIR_PARAM_CH4_NETMOD", "MPIR_CVAR_CH4_NETMOD"}) {
    if (IsSet(name)) return;
  }
  setenv("MPIR_CVAR_CH4_NETMOD", "ofi", 1);
}

void SendByTcpInOpenMpi() {
  constexpr char kSendInPlace[] = "9";  // send 1, put 2, get 4, in place 8
  setenv("OMPI_MCA_btl_tcp_flags", kSendInPlace, 0);
}

Settings EqualSettings() {
  Settings settings;
  for (const Variable& variable : kVariables) {
    if (!variable.equal) continue;
    const std::string text = Environment(variable.name);
    settings.emplace_back(variable.name,
                          text.empty() ? variable.fallback : text);
  }
  return settings;
}

std::string ConfigMarkdown() {
  std::string page =
      "# Configuration\n\n"
      "Most settings are environment variables that `init()` reads once. "
      "`init()` also compares the variables that must be the same on all "
      "ranks. "
      "If they differ, it fails with an error that names the variable, the "
      "ranks and the values.\n\n"
      "| variable | default | value | meaning | same on all ranks |\n"
      "|---|---|---|---|---|\n";
  for (const Variable& variable : kVariables) {
    page += std::string("| `") + variable.name + "` | " + variable.fallback +
            " | " + variable.expected + " | " + variable.meaning + " | " +
            (variable.equal ? "yes" : "no") + " |\n";
  }
  return page;
}

}  // namespace tf_hvd
