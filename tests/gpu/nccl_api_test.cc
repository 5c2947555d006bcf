// Compares the table of NCCL's functions with NCCL's own header.
#include "runtime/transport/gpu/nccl_api.h"

#include <gtest/gtest.h>
#include <nccl.h>

#include <cstddef>

#include "tests/gpu/alike.h"

namespace tf_hvd {

// Only the beginning of ncclConfig_t, which contains its own size.
template <>
struct Alike<NcclConfig, ncclConfig_t> {
  static constexpr bool Value() { return true; }
};

namespace {

#define TF_HVD_NCCL_FUNCTIONS(FUNCTION)                   \
  FUNCTION(get_version, ncclGetVersion)                   \
  FUNCTION(get_unique_id, ncclGetUniqueId)                \
  FUNCTION(comm_init_rank_config, ncclCommInitRankConfig) \
  FUNCTION(comm_get_async_error, ncclCommGetAsyncError)   \
  FUNCTION(comm_finalize, ncclCommFinalize)               \
  FUNCTION(comm_destroy, ncclCommDestroy)                 \
  FUNCTION(comm_abort, ncclCommAbort)                     \
  FUNCTION(get_error_string, ncclGetErrorString)          \
  FUNCTION(get_last_error, ncclGetLastError)              \
  FUNCTION(all_reduce, ncclAllReduce)                     \
  FUNCTION(reduce_scatter, ncclReduceScatter)             \
  FUNCTION(all_gather, ncclAllGather)                     \
  FUNCTION(broadcast, ncclBroadcast)                      \
  FUNCTION(send, ncclSend)                                \
  FUNCTION(receive, ncclRecv)                             \
  FUNCTION(group_start, ncclGroupStart)                   \
  FUNCTION(group_end, ncclGroupEnd)

#define TF_HVD_CHECK_FUNCTION(member, function)                             \
  static_assert(AreAlike<decltype(NcclApi::member), decltype(&function)>(), \
                #function " has different arguments");
TF_HVD_NCCL_FUNCTIONS(TF_HVD_CHECK_FUNCTION)

static_assert(AreAlike<NcclComm, ncclComm_t>(), "");
static_assert(AreAlike<CudaStream, cudaStream_t>(), "");
static_assert(sizeof(NcclUniqueId::bytes) == NCCL_UNIQUE_ID_BYTES, "");

TEST(NcclApi, EveryFunctionIsChecked) {
#define TF_HVD_COUNT_FUNCTION(member, function) +1
  EXPECT_EQ(sizeof(NcclApi) / sizeof(void (*)()),
            size_t{0} TF_HVD_NCCL_FUNCTIONS(TF_HVD_COUNT_FUNCTION));
}

TEST(NcclApi, ConfigurationIsAPrefixOfNccls) {
  EXPECT_EQ(offsetof(NcclConfig, size), offsetof(ncclConfig_t, size));
  EXPECT_EQ(offsetof(NcclConfig, magic), offsetof(ncclConfig_t, magic));
  EXPECT_EQ(offsetof(NcclConfig, version), offsetof(ncclConfig_t, version));
  EXPECT_EQ(offsetof(NcclConfig, blocking), offsetof(ncclConfig_t, blocking));
  EXPECT_LE(sizeof(NcclConfig), sizeof(ncclConfig_t));
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const NcclConfig ours;
  EXPECT_EQ(ours.magic, theirs.magic);
  // The member after the end of ours has a default in NCCL.
  EXPECT_EQ(offsetof(NcclConfig, undefined),
            offsetof(ncclConfig_t, cgaClusterSize));
  EXPECT_EQ(ours.undefined, theirs.cgaClusterSize);
  EXPECT_EQ(sizeof(ours.undefined), sizeof(theirs.cgaClusterSize));
  EXPECT_EQ(ours.undefined, NCCL_CONFIG_UNDEF_INT);
  EXPECT_EQ(static_cast<int>(ours.version), NCCL_VERSION(2, 14, 0));
  EXPECT_EQ(kNcclOldestVersion, NCCL_VERSION(2, 14, 0));
}

TEST(NcclApi, NumbersMatchTheHeader) {
  EXPECT_EQ(kNcclSuccess, ncclSuccess);
  EXPECT_EQ(kNcclInProgress, ncclInProgress);
  const auto number = [](NcclNumber ours) {
    return static_cast<ncclDataType_t>(ours);
  };
  EXPECT_EQ(number(NcclNumber::kInt8), ncclInt8);
  EXPECT_EQ(number(NcclNumber::kUint8), ncclUint8);
  EXPECT_EQ(number(NcclNumber::kInt32), ncclInt32);
  EXPECT_EQ(number(NcclNumber::kUint32), ncclUint32);
  EXPECT_EQ(number(NcclNumber::kInt64), ncclInt64);
  EXPECT_EQ(number(NcclNumber::kUint64), ncclUint64);
  EXPECT_EQ(number(NcclNumber::kFloat16), ncclFloat16);
  EXPECT_EQ(number(NcclNumber::kFloat32), ncclFloat32);
  EXPECT_EQ(number(NcclNumber::kFloat64), ncclFloat64);
  EXPECT_EQ(number(NcclNumber::kBfloat16), ncclBfloat16);
  const auto reduction = [](NcclReduction ours) {
    return static_cast<ncclRedOp_t>(ours);
  };
  EXPECT_EQ(reduction(NcclReduction::kSum), ncclSum);
  EXPECT_EQ(reduction(NcclReduction::kProduct), ncclProd);
  EXPECT_EQ(reduction(NcclReduction::kMax), ncclMax);
  EXPECT_EQ(reduction(NcclReduction::kMin), ncclMin);
}

}  // namespace
}  // namespace tf_hvd
