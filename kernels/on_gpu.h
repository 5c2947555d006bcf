// GPU-specific additions to a call's request, made either by TensorFlow's
// executor or by a compiled step. Streams are TensorFlow's or XLA's.
// Independent of TensorFlow; any thread.
#ifndef TF_HVD_KERNELS_ON_GPU_H_
#define TF_HVD_KERNELS_ON_GPU_H_

#include <memory>
#include <string>

#include "base/status.h"
#include "runtime/api/runtime.h"
#include "runtime/request/entry.h"
#include "runtime/transport/gpu/device.h"

namespace tf_hvd {

// The GPU of a stream. `where` names the device, for the error.
Status FindDevice(const Runtime& runtime, void* stream,
                  const std::string& where, std::shared_ptr<GpuDevice>* device);

// Marks the entry, which already has its tensors, as being on the stream's
// device: records on the stream the event that the runtime must wait for, and
// another one when the entry's outputs have been allocated. Call it on the
// thread that enqueues work on the stream.
Status PlaceOnGpu(const Runtime& runtime, void* stream,
                  const std::string& where, Entry* entry);

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_ON_GPU_H_
