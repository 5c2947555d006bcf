// DeviceBell: what a device rings when it has come to the end of an operation,
// so that this rank's background thread may sleep until then.
//
// The driver calls `ring` on a thread of its own, at any time, also when what
// it rings is no longer there: then it does nothing. Nobody can say when it has
// been called for the last time: what it needs stays for as long as the
// process.
#ifndef TF_HVD_RUNTIME_TRANSPORT_GPU_DEVICE_BELL_H_
#define TF_HVD_RUNTIME_TRANSPORT_GPU_DEVICE_BELL_H_

#include "runtime/contract/doorbell.h"
#include "runtime/transport/gpu/device.h"

namespace tf_hvd {

class DeviceBell {
 public:
  // `doorbell`: this rank's own. It outlives this.
  explicit DeviceBell(Doorbell* doorbell);
  // From now on it rings nothing.
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
