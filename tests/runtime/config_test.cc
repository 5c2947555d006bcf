#include "base/config.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace tf_hvd {
namespace {

using Environment = std::map<std::string, std::string>;

// All variables that are read, so that the environment of the test's launcher
// or shell has no effect.
const std::vector<std::string> kNames = {
    "HOROVOD_FUSION_THRESHOLD",
    "HOROVOD_STALL_CHECK_TIME_SECONDS",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
    "HOROVOD_STALL_CHECK_DISABLE",
    "HOROVOD_LOG_LEVEL",
    "TF_HVD_SPIN_MICROSECONDS",
    "TF_HVD_MPI_LIBRARY",
    "TF_HVD_RANKS_PER_NODE",
    "TF_HVD_NODE_DATA",
    "TF_HVD_NCCL",
    "HOROVOD_TIMELINE",
    "HOROVOD_GPU_OPERATIONS",
    "HOROVOD_GPU_ALLREDUCE",
    "HOROVOD_GPU_ALLGATHER",
    "HOROVOD_GPU_BROADCAST",
    "HOROVOD_GPU_ALLTOALL",
    "HOROVOD_GPU_REDUCESCATTER",
    "TF_HVD_ALONE",
    "TF_HVD_STARTED_BY",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OPAL_PREFIX",
    "PMI_SIZE",
    "PMI_RANK",
    "PMI_FD",
    "MPI_LOCALNRANKS",
    "SLURM_STEP_ID",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
};

void SetEnvironment(const Environment& values) {
  for (const std::string& name : kNames) unsetenv(name.c_str());
  for (const auto& [name, value] : values) {
    setenv(name.c_str(), value.c_str(), 1);
  }
}

TEST(ConfigTest, DefaultsAreTheDocumentedOnes) {
  SetEnvironment({});
  Config config;
  ASSERT_TRUE(ReadConfig(&config).ok());
  EXPECT_EQ(config.fusion_threshold, 67108864);
  EXPECT_EQ(config.stall_warn_ns, 30'000'000'000);
  EXPECT_EQ(config.stall_fail_ns, 1'800'000'000'000);
  EXPECT_EQ(config.stall_stuck_ns, 300'000'000'000);
  EXPECT_EQ(config.spin_ns, 50'000);
  EXPECT_EQ(config.ranks_per_node, 0);
  EXPECT_TRUE(config.node_data_shm);
  EXPECT_EQ(config.mpi_library, "");
  EXPECT_EQ(config.log_level, LogLevel::kWarning);
}

TEST(ConfigTest, ReadsEachVariable) {
  SetEnvironment({{"HOROVOD_FUSION_THRESHOLD", "0"},
                  {"HOROVOD_STALL_CHECK_TIME_SECONDS", "0.25"},
                  {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "2"},
                  {"HOROVOD_LOG_LEVEL", "debug"},
                  {"TF_HVD_SPIN_MICROSECONDS", "7"},
                  {"TF_HVD_MPI_LIBRARY", "/a/libmpi.so"},
                  {"TF_HVD_NODE_DATA", "mpi"},
                  {"TF_HVD_RANKS_PER_NODE", "2"}});
  Config config;
  ASSERT_TRUE(ReadConfig(&config).ok());
  EXPECT_EQ(config.fusion_threshold, 0);
  EXPECT_EQ(config.stall_warn_ns, 250'000'000);
  EXPECT_EQ(config.stall_fail_ns, 2'000'000'000);
  EXPECT_EQ(config.stall_stuck_ns, 2'000'000'000);
  EXPECT_EQ(config.log_level, LogLevel::kDebug);
  EXPECT_EQ(config.spin_ns, 7'000);
  EXPECT_EQ(config.mpi_library, "/a/libmpi.so");
  EXPECT_FALSE(config.node_data_shm);
  EXPECT_EQ(config.ranks_per_node, 2);
}

TEST(ConfigTest, GpusByMpiAllOrEach) {
  const auto by_mpi = [](const Environment& values) {
    SetEnvironment(values);
    Config config;
    EXPECT_TRUE(ReadConfig(&config).ok());
    return config.gpu_by_mpi;
  };
  using Kinds = std::set<OpKind>;
  EXPECT_EQ(by_mpi({}), Kinds{});
  EXPECT_EQ(by_mpi({{"HOROVOD_GPU_OPERATIONS", "NCCL"}}), Kinds{});
  const Kinds all = {OpKind::kAllreduce, OpKind::kAllgather, OpKind::kBroadcast,
                     OpKind::kAlltoall, OpKind::kReducescatter};
  EXPECT_EQ(by_mpi({{"HOROVOD_GPU_OPERATIONS", "MPI"}}), all);
  EXPECT_EQ(by_mpi({{"HOROVOD_GPU_BROADCAST", "MPI"},
                    {"HOROVOD_GPU_ALLREDUCE", "NCCL"}}),
            Kinds{OpKind::kBroadcast});
  EXPECT_EQ(by_mpi({{"HOROVOD_GPU_OPERATIONS", "MPI"},
                    {"HOROVOD_GPU_ALLGATHER", "NCCL"},
                    {"HOROVOD_GPU_ALLTOALL", "NCCL"},
                    {"HOROVOD_GPU_REDUCESCATTER", "NCCL"}}),
            (Kinds{OpKind::kAllreduce, OpKind::kBroadcast}));
}

TEST(ConfigTest, DisableOverridesTheTime) {
  SetEnvironment({{"HOROVOD_STALL_CHECK_TIME_SECONDS", "9"},
                  {"HOROVOD_STALL_CHECK_DISABLE", "1"}});
  Config config;
  ASSERT_TRUE(ReadConfig(&config).ok());
  EXPECT_EQ(config.stall_warn_ns, 0);
}

// One limit for all waits, including those that can be seen not to succeed.
TEST(ConfigTest, UserLimitAppliesToAllWaits) {
  const auto stuck_ns = [](const Environment& values) {
    SetEnvironment(values);
    Config config;
    EXPECT_TRUE(ReadConfig(&config).ok());
    return config.stall_stuck_ns;
  };
  const char* const name = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS";
  EXPECT_EQ(stuck_ns({{name, "3600"}}), 3600'000'000'000);
  EXPECT_EQ(stuck_ns({{name, "0"}}), 0);
  // A job never fails before its stall was warned about.
  EXPECT_EQ(stuck_ns({{"HOROVOD_STALL_CHECK_TIME_SECONDS", "400"}}),
            1'800'000'000'000);
}

TEST(ConfigTest, LogLevelsCanBeInCapitals) {
  SetEnvironment({{"HOROVOD_LOG_LEVEL", "DEBUG"}});
  Config config;
  ASSERT_TRUE(ReadConfig(&config).ok());
  EXPECT_EQ(config.log_level, LogLevel::kDebug);
}

TEST(ConfigTest, BadValuesNameVariableAndValue) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"HOROVOD_FUSION_THRESHOLD", "-1"},
      {"HOROVOD_FUSION_THRESHOLD", "64MB"},
      {"HOROVOD_FUSION_THRESHOLD", "9999999999999999999999"},
      {"HOROVOD_STALL_CHECK_TIME_SECONDS", "soon"},
      {"HOROVOD_STALL_CHECK_TIME_SECONDS", "nan"},
      {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "-3"},
      {"HOROVOD_STALL_CHECK_DISABLE", "yes"},
      {"HOROVOD_LOG_LEVEL", "loud"},
      {"TF_HVD_SPIN_MICROSECONDS", "1e999"},
      {"TF_HVD_SPIN_MICROSECONDS",
       "1e14"},  // overflowed when multiplied by a hundred
      {"TF_HVD_SPIN_MICROSECONDS", "10000001"},
      {"TF_HVD_RANKS_PER_NODE", "two"},
      {"TF_HVD_NODE_DATA", "tcp"},
      {"HOROVOD_GPU_OPERATIONS", "DDL"},
      {"HOROVOD_GPU_ALLREDUCE", "nccl"},
  };
  for (const auto& [name, value] : cases) {
    SetEnvironment({{name, value}});
    Config config;
    const Status status = ReadConfig(&config);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name;
    EXPECT_NE(status.message().find(name + "=" + value), std::string::npos)
        << status.message();
  }
}

TEST(ConfigTest, SpinTimeIsLimitedToTenSeconds) {
  SetEnvironment({{"TF_HVD_SPIN_MICROSECONDS", "1e7"}});
  Config config;
  ASSERT_TRUE(ReadConfig(&config).ok());
  EXPECT_EQ(config.spin_ns, 10'000'000'000);
}

TEST(ConfigTest, FailureMustComeAfterTheWarning) {
  SetEnvironment({{"HOROVOD_STALL_CHECK_TIME_SECONDS", "5"},
                  {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "5"}});
  Config config;
  EXPECT_EQ(ReadConfig(&config).code(), StatusCode::kInvalidArgument);
}

TEST(ConfigTest, PageListsEveryVariable) {
  const std::string page = ConfigMarkdown();
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_NE(page.find("| `" + kNames[i] + "` |"), std::string::npos)
        << kNames[i];
  }
}

TEST(ConfigTest, EqualSettingsHaveDefaultsOrEnvironmentValues) {
  SetEnvironment({{"TF_HVD_RANKS_PER_NODE", "2"},
                  {"HOROVOD_LOG_LEVEL", "debug"},
                  {"HOROVOD_STALL_CHECK_TIME_SECONDS", "9"}});
  EXPECT_EQ(EqualSettings(), (Settings{{"HOROVOD_FUSION_THRESHOLD", "67108864"},
                                       {"TF_HVD_RANKS_PER_NODE", "2"},
                                       {"TF_HVD_NODE_DATA", "shm"},
                                       {"TF_HVD_NCCL", "1"},
                                       {"HOROVOD_GPU_OPERATIONS", "NCCL"},
                                       {"HOROVOD_GPU_ALLREDUCE", ""},
                                       {"HOROVOD_GPU_ALLGATHER", ""},
                                       {"HOROVOD_GPU_BROADCAST", ""},
                                       {"HOROVOD_GPU_ALLTOALL", ""},
                                       {"HOROVOD_GPU_REDUCESCATTER", ""}}));
}

// Settings of a single machine may differ.
TEST(ConfigTest, NcclSettingsIncludeOnlyThoseThatMustBeEqual) {
  for (const char* name : {"NCCL_SOCKET_IFNAME", "NCCL_DEBUG", "NCCL_HOSTID",
                           "NCCL_IB_HCA", "NCCL_TOPO_FILE"}) {
    setenv(name, "x", 1);
  }
  EXPECT_EQ(NcclSettings(), "");
  setenv("NCCL_PROTO", "Simple", 1);
  setenv("NCCL_ALGO", "", 1);
  EXPECT_EQ(NcclSettings(), "NCCL_ALGO=\nNCCL_PROTO=Simple\n");
}

TEST(LaunchInfoTest, AloneOverrulesTheLauncher) {
  SetEnvironment({{"OMPI_COMM_WORLD_SIZE", "4"},
                  {"OMPI_COMM_WORLD_RANK", "3"},
                  {"TF_HVD_ALONE", "1"},
                  {"TF_HVD_STARTED_BY", "12:34"}});
  Config config;
  LaunchInfo info;
  ASSERT_TRUE(ReadConfig(&config).ok());
  EXPECT_TRUE(config.standalone);
  ASSERT_TRUE(ReadLaunchInfo(&info).ok());
  EXPECT_EQ(info.family, LaunchInfo::Family::kNone);
  EXPECT_EQ(info.size, 1);
  EXPECT_EQ(info.rank_mark, "");
}

TEST(LaunchInfoTest, TellsWhoStartedTheProcess) {
  SetEnvironment({{"OMPI_COMM_WORLD_SIZE", "4"},
                  {"OMPI_COMM_WORLD_RANK", "3"},
                  {"TF_HVD_STARTED_BY", "12:34"}});
  LaunchInfo info;
  ASSERT_TRUE(ReadLaunchInfo(&info).ok());
  EXPECT_EQ(info.rank_mark, "12:34");
}

struct LaunchCase {
  Environment environment;
  LaunchInfo::Family family;
  int size;
  int rank;
  std::string hint;
  bool slurm_pmi = false;
};

TEST(LaunchInfoTest, KnowsTheLaunchers) {
  using Family = LaunchInfo::Family;
  const std::vector<LaunchCase> cases = {
      {{}, Family::kNone, 1, 0, ""},
      {{{"OMPI_COMM_WORLD_SIZE", "4"},
        {"OMPI_COMM_WORLD_RANK", "3"},
        {"OPAL_PREFIX", "/opt/x"}},
       Family::kOpenMpi,
       4,
       3,
       "/opt/x/lib"},
      {{{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}, {"MPI_LOCALNRANKS", "2"}},
       Family::kMpich,
       2,
       1,
       ""},
      // hydra, its daemons started by srun: one task for each node
      {{{"PMI_SIZE", "8"},
        {"PMI_RANK", "5"},
        {"PMI_FD", "7"},
        {"MPI_LOCALNRANKS", "4"},
        {"SLURM_STEP_ID", "0"},
        {"SLURM_PROCID", "1"},
        {"SLURM_NTASKS", "2"}},
       Family::kMpich,
       8,
       5,
       ""},
      // srun --mpi=pmi2: the library may be of either family
      {{{"PMI_SIZE", "8"},
        {"PMI_RANK", "5"},
        {"PMI_FD", "7"},
        {"SLURM_STEP_ID", "0"},
        {"SLURM_PROCID", "5"},
        {"SLURM_NTASKS", "8"}},
       Family::kSlurm,
       8,
       5,
       "",
       true},
      // salloc without srun: a single process
      {{{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}}, Family::kNone, 1, 0, ""},
      {{{"SLURM_STEP_ID", "1"},
        {"SLURM_PROCID", "2"},
        {"SLURM_NTASKS", "8"},
        {"SLURM_STEP_NUM_TASKS", "3"}},
       Family::kSlurm,
       3,
       2,
       ""},
  };
  for (const LaunchCase& expected : cases) {
    SetEnvironment(expected.environment);
    LaunchInfo info;
    ASSERT_TRUE(ReadLaunchInfo(&info).ok());
    EXPECT_EQ(info.family, expected.family);
    EXPECT_EQ(info.size, expected.size);
    EXPECT_EQ(info.rank, expected.rank);
    EXPECT_EQ(info.library_hint, expected.hint);
    EXPECT_EQ(info.slurm_pmi, expected.slurm_pmi);
  }
}

TEST(LaunchInfoTest, MpichNetworkSetByTheUserIsKept) {
  SetEnvironment({});
  for (const char* name : {"MPICH_CH4_NETMOD", "MPIR_CVAR_CH4_NETMOD"}) {
    setenv(name, "ucx", 1);
    PreferLibfabricInMpich();
    EXPECT_STREQ(getenv(name), "ucx");
    unsetenv(name);
    EXPECT_EQ(getenv("MPIR_CVAR_CH4_NETMOD"), nullptr);
  }
  PreferLibfabricInMpich();
  EXPECT_STREQ(getenv("MPIR_CVAR_CH4_NETMOD"), "ofi");
  unsetenv("MPIR_CVAR_CH4_NETMOD");
}

TEST(LaunchInfoTest, OpenMpiTcpFlagsSetByTheUserAreKept) {
  SetEnvironment({});
  setenv("OMPI_MCA_btl_tcp_flags", "send,put", 1);
  SendByTcpInOpenMpi();
  EXPECT_STREQ(getenv("OMPI_MCA_btl_tcp_flags"), "send,put");
  unsetenv("OMPI_MCA_btl_tcp_flags");
  SendByTcpInOpenMpi();
  EXPECT_STREQ(getenv("OMPI_MCA_btl_tcp_flags"), "9");
  unsetenv("OMPI_MCA_btl_tcp_flags");
}

TEST(LaunchInfoTest, InvalidCountIsAnError) {
  const std::vector<Environment> cases = {
      {{"OMPI_COMM_WORLD_SIZE", "many"}, {"OMPI_COMM_WORLD_RANK", "0"}},
      {{"OMPI_COMM_WORLD_SIZE", "0"}, {"OMPI_COMM_WORLD_RANK", "0"}},
      {{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "2"}},
      {{"OMPI_COMM_WORLD_SIZE", "2"}},
      {{"PMI_RANK", "0"}},
      {{"PMI_SIZE", "-2"}, {"PMI_RANK", "0"}},
      {{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}},
  };
  for (const Environment& environment : cases) {
    SetEnvironment(environment);
    LaunchInfo info;
    EXPECT_EQ(ReadLaunchInfo(&info).code(), StatusCode::kInvalidArgument);
  }
}

TEST(LaunchInfoTest, ErrorNamesVariableAndValue) {
  SetEnvironment(
      {{"OMPI_COMM_WORLD_SIZE", "many"}, {"OMPI_COMM_WORLD_RANK", "0"}});
  LaunchInfo info;
  EXPECT_NE(ReadLaunchInfo(&info).message().find("OMPI_COMM_WORLD_SIZE=many"),
            std::string::npos);
}

}  // namespace
}  // namespace tf_hvd
