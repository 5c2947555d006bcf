// The functions of libcuda, libcudart and libnvidia-ml that TensorFlow's CUDA
// device needs in addition to tf_hvd's; the others come from
// libsoftware_gpu.so, with which this is linked. One library under the three
// names. It moves memory and launches tf_hvd's kernels. Kernels of TensorFlow
// do nothing, so only copies to such a GPU can be checked.
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>

using Pointer = uint64_t;
constexpr int kNotReady = 600;
constexpr int kWholeMemoryMib = 2048;

extern "C" {
int cuCtxGetDevice(int* device);
int cuCtxPopCurrent_v2(void** context);
int cuCtxPushCurrent_v2(void* context);
int cuEventCreate(void** event, unsigned flags);
int cuEventDestroy_v2(void* event);
int cuEventQuery(void* event);
int cuEventRecord(void* event, void* stream);
int cuMemAlloc_v2(Pointer* memory, size_t size);
int cuMemHostAlloc(void** memory, size_t size, unsigned flags);
int cuMemcpyAsync(Pointer to, Pointer from, size_t size, void* stream);
int cuMemsetD32Async(Pointer to, unsigned value, size_t count, void* stream);
int cuStreamCreateWithPriority(void** stream, unsigned flags, int priority);
}

namespace {

void Await(void* event) {
  while (cuEventQuery(event) == kNotReady) usleep(50);
}

void AwaitStream(void* stream) {
  void* event = nullptr;
  if (cuEventCreate(&event, 0) != 0) return;
  cuEventRecord(event, stream);
  Await(event);
  cuEventDestroy_v2(event);
}

// For calls without a stream.
void* OwnStream() {
  static void* const stream = [] {
    void* made = nullptr;
    cuStreamCreateWithPriority(&made, 1, 0);
    return made;
  }();
  return stream;
}

// Pageable memory is copied through pinned memory, as in the real driver. Never
// freed: a rehearsal is short.
void* Staged(size_t size) {
  void* memory = nullptr;
  return cuMemHostAlloc(&memory, size, 0) == 0 ? memory : nullptr;
}

// Calls a function on the host at this point of the stream.
template <typename Function>
int Later(void* stream, Function function) {
  void* context = nullptr;
  void* event = nullptr;
  cuCtxPopCurrent_v2(&context);
  cuCtxPushCurrent_v2(context);
  if (cuEventCreate(&event, 0) != 0) return 2;
  cuEventRecord(event, stream);
  std::thread([context, event, function] {
    cuCtxPushCurrent_v2(context);
    Await(event);
    function();
  }).detach();
  return 0;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int cuCtxGetCurrent(void** context) {
  *context = nullptr;
  if (cuCtxPopCurrent_v2(context) != 0) *context = nullptr;
  return *context == nullptr ? 0 : cuCtxPushCurrent_v2(*context);
}
EXPORT int cuCtxSetCurrent(void* context) {
  void* former = nullptr;
  cuCtxPopCurrent_v2(&former);
  return context == nullptr ? 0 : cuCtxPushCurrent_v2(context);
}
EXPORT int cuCtxSynchronize() { return 0; }
EXPORT int cuDevicePrimaryCtxGetState(int /*device*/, unsigned* flags,
                                      int* active) {
  *flags = 0;
  *active = 0;
  return 0;
}
EXPORT int cuDevicePrimaryCtxSetFlags_v2(int /*device*/, unsigned /*flags*/) {
  return 0;
}
EXPORT int cuDeviceGetPCIBusId(char* text, int size, int device) {
  std::strncpy(text, device == 0 ? "0000:00:01.0" : "0000:00:02.0",
               static_cast<size_t>(size));
  return 0;
}
EXPORT int cuDeviceTotalMem_v2(size_t* size, int /*device*/) {
  *size = size_t{kWholeMemoryMib} << 20;
  return 0;
}
EXPORT int cuDeviceCanAccessPeer(int* can, int /*one*/, int /*other*/) {
  *can = 0;
  return 0;
}
EXPORT int cuMemGetInfo_v2(size_t* left, size_t* whole) {
  *whole = size_t{kWholeMemoryMib} << 20;
  *left = *whole / 2;
  return 0;
}
EXPORT int cuEventSynchronize(void* event) {
  Await(event);
  return 0;
}
EXPORT int cuStreamSynchronize(void* stream) {
  if (stream != nullptr) AwaitStream(stream);
  return 0;
}
EXPORT int cuStreamCreate(void** stream, unsigned /*flags*/) {
  return cuStreamCreateWithPriority(stream, 1, 0);
}
EXPORT int cuStreamIsCapturing(void* /*stream*/, int* status) {
  *status = 0;
  return 0;
}
EXPORT int cuPointerGetAttribute(void* value, int attribute,
                                 Pointer /*memory*/) {
  constexpr int kDeviceOrdinal = 9;
  return attribute == kDeviceOrdinal ? cuCtxGetDevice(static_cast<int*>(value))
                                     : 1;
}
EXPORT int cuMemcpyHtoDAsync_v2(Pointer to, const void* from, size_t size,
                                void* stream) {
  void* const staged = Staged(size);
  if (staged == nullptr) return 2;
  std::memcpy(staged, from, size);
  return cuMemcpyAsync(to, reinterpret_cast<Pointer>(staged), size, stream);
}
EXPORT int cuMemcpyDtoHAsync_v2(void* to, Pointer from, size_t size,
                                void* stream) {
  void* const staged = Staged(size);
  if (staged == nullptr) return 2;
  const int error =
      cuMemcpyAsync(reinterpret_cast<Pointer>(staged), from, size, stream);
  AwaitStream(stream);
  std::memcpy(to, staged, size);
  return error;
}
EXPORT int cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, size_t size,
                                void* stream) {
  return cuMemcpyAsync(to, from, size, stream);
}
EXPORT int cuMemcpyHtoD_v2(Pointer to, const void* from, size_t size) {
  const int error = cuMemcpyHtoDAsync_v2(to, from, size, OwnStream());
  AwaitStream(OwnStream());
  return error;
}
EXPORT int cuMemcpyDtoH_v2(void* to, Pointer from, size_t size) {
  return cuMemcpyDtoHAsync_v2(to, from, size, OwnStream());
}
EXPORT int cuMemsetD8Async(Pointer to, unsigned char value, size_t size,
                           void* stream) {
  return cuMemsetD32Async(to, value * 0x01010101U, size / 4, stream);
}
EXPORT int cuLaunchHostFunc(void* stream, void (*function)(void*),
                            void* argument) {
  return Later(stream, [function, argument] { function(argument); });
}
EXPORT int cuStreamAddCallback(void* stream,
                               void (*function)(void*, int, void*),
                               void* argument, unsigned /*flags*/) {
  return Later(stream,
               [stream, function, argument] { function(stream, 0, argument); });
}

// The runtime: each library of TensorFlow registers its kernels when it is
// loaded.
EXPORT void** __cudaRegisterFatBinary(void* /*code*/) {
  static void* handle[1];
  return handle;
}
EXPORT void __cudaRegisterFatBinaryEnd(void** /*handle*/) {}
EXPORT void __cudaUnregisterFatBinary(void** /*handle*/) {}
EXPORT void __cudaRegisterFunction() {}
EXPORT void __cudaRegisterVar() {}
EXPORT int cudaRuntimeGetVersion(int* version) {
  *version = 12090;
  return 0;
}
EXPORT int cudaGetDeviceCount(int* count) {
  *count = 1;
  return 0;
}
EXPORT int cudaGetDevice(int* device) {
  *device = 0;
  return 0;
}
EXPORT int cudaSetDevice(int /*device*/) { return 0; }
EXPORT int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return 0;
}
EXPORT int cudaGetDeviceProperties_v2(int* properties, int /*device*/) {
  std::fill_n(properties, 128, 1024);  // none of it is read
  return 0;
}
EXPORT int cudaGetLastError() { return 0; }
EXPORT int cudaPeekAtLastError() { return 0; }
EXPORT const char* cudaGetErrorString(int /*error*/) { return "no kernels"; }

// The management library only needs to start.
EXPORT int nvmlInit_v2() { return 0; }
EXPORT int nvmlShutdown() { return 0; }
