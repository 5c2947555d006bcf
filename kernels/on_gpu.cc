#include "kernels/on_gpu.h"

#include "runtime/transport/gpu/devices.h"

namespace tf_hvd {

Status FindDevice(const Runtime& runtime, void* stream,
                  const std::string& where,
                  std::shared_ptr<GpuDevice>* device) {
  GpuDevices* const gpus = runtime.gpus();
  if (stream != nullptr && gpus != nullptr) {
    return gpus->OfStream(static_cast<CudaStream>(stream), device);
  }
  return FailedPrecondition(
      "the tensors are on " + where +
      ", and tf_hvd has found no CUDA driver ('tf_hvd doctor' says why); put "
      "them on the CPU: use tf.device('/CPU:0') around the call, or around "
      "the whole compiled step");
}

Status PlaceOnGpu(const Runtime& runtime, void* stream,
                  const std::string& where, Entry* entry) {
  std::shared_ptr<GpuDevice> device;
  TF_HVD_RETURN_IF_ERROR(FindDevice(runtime, stream, where, &device));
  auto* const on = static_cast<CudaStream>(stream);
  entry->memory.kind = MemoryKind::kDevice;
  entry->memory.device = device->ordinal();
  if (entry->allocate != nullptr) {
    entry->allocated = [device, on](std::shared_ptr<GpuEvent>* ready) {
      return device->Record(on, ready);
    };
  }
  return device->Record(on, &entry->memory.ready);
}

}  // namespace tf_hvd
