// What a call whose tensors lie on a GPU adds to its request, whether
// TensorFlow's executor makes it or a compiled step. Streams are TensorFlow's
// or XLA's. Knows nothing of TensorFlow; any thread.
#ifndef TF_HVD_KERNELS_ON_GPU_H_
#define TF_HVD_KERNELS_ON_GPU_H_

#include <memory>
#include <string>

#include "base/status.h"
#include "runtime/api/runtime.h"
#include "runtime/request/entry.h"
#include "runtime/transport/gpu/device.h"

namespace tf_hvd {

// That of a stream. `where` names the device, for the error.
Status FindDevice(const Runtime& runtime, void* stream,
                  const std::string& where, std::shared_ptr<GpuDevice>* device);

// Says of the entry, whose tensors have been added, that they lie on the
// stream's device: records on the stream what they have to be waited for, and
// again when the entry's outputs have been allocated. On the thread that puts
// work on the stream.
Status PlaceOnGpu(const Runtime& runtime, void* stream,
                  const std::string& where, Entry* entry);

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_ON_GPU_H_
