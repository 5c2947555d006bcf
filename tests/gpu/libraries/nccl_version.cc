// The one function of NCCL by which a library tells which it is: BUILD gives
// the version.
extern "C" int ncclGetVersion(int* version) {
  *version = FIXTURE_NCCL_VERSION;
  return 0;
}
