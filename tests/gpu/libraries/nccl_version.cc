// NCCL's function that returns the library's version: BUILD sets it.
extern "C" int ncclGetVersion(int* version) {
  *version = FIXTURE_NCCL_VERSION;
  return 0;
}
