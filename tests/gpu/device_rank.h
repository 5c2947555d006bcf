// DeviceRank: one rank with a GPU, real or software, and the work of
// TensorFlow's kernels there, without TensorFlow: requests to a Runtime, for
// tensors that a stream computes. RunDeviceRanks: such ranks as threads.
//
// Depends only on the runtime, like device_side.h.
#ifndef TF_HVD_TESTS_GPU_DEVICE_RANK_H_
#define TF_HVD_TESTS_GPU_DEVICE_RANK_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "runtime/api/runtime.h"
#include "runtime/transport/gpu/cuda_api.h"
#include "runtime/transport/gpu/device.h"
#include "tests/gpu/device_side.h"

namespace tf_hvd {

// One dimension. In place if the addresses are equal.
struct DeviceTensor {
  const char* input = nullptr;
  char* output = nullptr;
  int64_t count = 0;  // elements of the input
};

// A request in progress; receives the result.
using Reply = std::future<Status>;

// One thread.
class DeviceRank {
 public:
  // `cuda`: for the side's own calls. Both must outlive the rank.
  static Status Open(Runtime* runtime, const CudaApi* cuda, int ordinal,
                     std::unique_ptr<DeviceRank>* rank);

  int rank() const { return runtime_->topology().rank; }
  int size() const { return runtime_->topology().size; }

  DeviceSide* side() const { return side_.get(); }

  // From now on requests do not wait for the stream: a flaw that must show in
  // wrong results.
  void ForgetProducers() { forgets_ = true; }

  // Requests that wait for all previous work on the stream. Memory must exist
  // until the reply.
  Reply Allreduce(const std::string& name, DType dtype,
                  const std::vector<DeviceTensor>& group, ReduceOp op,
                  double prescale = 1.0, double postscale = 1.0);
  Reply Allgather(const std::string& name, DType dtype,
                  const DeviceTensor& rows);
  Reply Broadcast(const std::string& name, DType dtype,
                  const DeviceTensor& tensor, int root);
  Reply Alltoall(const std::string& name, DType dtype, const DeviceTensor& rows,
                 std::vector<int64_t> splits);
  Reply Reducescatter(const std::string& name, DType dtype,
                      const DeviceTensor& tensor, ReduceOp op);
  Reply Barrier(const std::string& name);

  // Returns an error after a minute.
  static Status Wait(Reply reply, const std::string& what);

 private:
  explicit DeviceRank(Runtime* runtime) : runtime_(runtime) {}

  Entry NewEntry(OpKind kind, const std::string& name);
  Reply SubmitRows(Entry entry, char* output);
  Reply Submit(Entry entry);
  Status Ready(std::shared_ptr<GpuEvent>* ready);

  Runtime* const runtime_;
  std::unique_ptr<DeviceSide> side_;
  bool forgets_ = false;
};

// Calls `fn` for each of the worlds' ranks on a separate thread, with the GPU
// `ordinal(rank)`, then ends the job, and returns the first error. At its end
// `fn` must wait for the other ranks, for example by a barrier, if the job
// continues.
Status RunDeviceRanks(std::vector<std::unique_ptr<World>> worlds,
                      const CudaApi* cuda,
                      const std::function<int(int rank)>& ordinal,
                      const std::function<Status(DeviceRank&)>& fn);

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_DEVICE_RANK_H_
