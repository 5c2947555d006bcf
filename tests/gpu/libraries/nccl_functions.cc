// The other functions that tf_hvd looks up in NCCL, only by name: they are
// never called.
#define FIXTURE_FUNCTION(name) \
  extern "C" int name() { return 0; }

FIXTURE_FUNCTION(ncclGetUniqueId)
FIXTURE_FUNCTION(ncclCommInitRankConfig)
FIXTURE_FUNCTION(ncclCommGetAsyncError)
FIXTURE_FUNCTION(ncclCommFinalize)
FIXTURE_FUNCTION(ncclCommDestroy)
FIXTURE_FUNCTION(ncclCommAbort)
FIXTURE_FUNCTION(ncclGetErrorString)
FIXTURE_FUNCTION(ncclGetLastError)
FIXTURE_FUNCTION(ncclAllReduce)
FIXTURE_FUNCTION(ncclReduceScatter)
FIXTURE_FUNCTION(ncclAllGather)
FIXTURE_FUNCTION(ncclBroadcast)
FIXTURE_FUNCTION(ncclSend)
FIXTURE_FUNCTION(ncclRecv)
FIXTURE_FUNCTION(ncclGroupStart)
FIXTURE_FUNCTION(ncclGroupEnd)
