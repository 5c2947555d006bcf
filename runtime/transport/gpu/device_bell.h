// DeviceBell: rung by a device at the end of an operation, so that this rank's
// background thread may sleep until then.
//
// The driver calls `ring` on one of its threads, at any time, even after the
// doorbell was destroyed; it then does nothing. The last call cannot be
// predicted, so the state is kept until the process exits.
#ifndef TF_HVD_RUNTIME_TRANSPORT_GPU_DEVICE_BELL_H_
#define TF_HVD_RUNTIME_TRANSPORT_GPU_DEVICE_BELL_H_

#include "runtime/contract/doorbell.h"
#include "runtime/transport/gpu/device.h"

namespace tf_hvd {

class DeviceBell {
 public:
  // `doorbell`: this rank's. It outlives this object.
  explicit DeviceBell(Doorbell* doorbell);
  // From now on `ring` does nothing.
  ~DeviceBell();

  DeviceBell(const DeviceBell&) = delete;
  DeviceBell& operator=(const DeviceBell&) = delete;

  HostFunction ring() const;

 private:
  struct State;
  State* const state_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_GPU_DEVICE_BELL_H_
