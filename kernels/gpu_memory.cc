#include "kernels/gpu_memory.h"

#include <memory>

#include "runtime/transport/gpu/device.h"
#include "runtime/transport/gpu/devices.h"

namespace tf_hvd {

Status PlaceOnGpu(const Runtime& runtime, tf::OpKernelContext* ctx,
                  Entry* entry) {
  auto* const stream = static_cast<CudaStream>(StreamOf(ctx));
  GpuDevices* const gpus = runtime.gpus();
  if (stream == nullptr || gpus == nullptr) {
    return FailedPrecondition(
        "the tensors lie on " + ctx->device()->name() +
        ", and tf_hvd has found no CUDA driver ('tf_hvd doctor' says why); "
        "put the collective on the CPU: with tf.device('/CPU:0')");
  }
  std::shared_ptr<GpuDevice> device;
  TF_HVD_RETURN_IF_ERROR(gpus->OfStream(stream, &device));
  entry->memory.kind = MemoryKind::kDevice;
  entry->memory.device = device->ordinal();
  if (entry->allocate != nullptr) {
    entry->allocated = [device, stream](std::shared_ptr<GpuEvent>* ready) {
      return device->Record(stream, ready);
    };
  }
  return device->Record(stream, &entry->memory.ready);
}

}  // namespace tf_hvd
