// DeviceRank: one rank with a GPU, real or of software, and TensorFlow's side
// of it without TensorFlow: a stream that computes, tensors on the device,
// requests to a Runtime. RunDeviceRanks: such ranks, as threads.
//
// Needs nothing but the runtime: it is compiled where there is no test
// framework either (tests/run_gpu.sh).
#ifndef TF_HVD_TESTS_GPU_DEVICE_RANK_H_
#define TF_HVD_TESTS_GPU_DEVICE_RANK_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "runtime/runtime.h"
#include "runtime/transport/gpu/cuda_api.h"
#include "runtime/transport/gpu/gpu_device.h"

namespace tf_hvd {

// Of one dimension. In place if they are equal.
struct DeviceTensor {
  const char* input = nullptr;
  char* output = nullptr;
  int64_t count = 0;  // elements of the input
};

// A request that is under way; what becomes of it.
using Reply = std::future<Status>;

// One thread.
class DeviceRank {
 public:
  // `cuda`: the driver for this side's own calls. Both outlive the rank.
  static Status Open(Runtime* runtime, const CudaApi* cuda, int ordinal,
                     std::unique_ptr<DeviceRank>* rank);

  int rank() const { return runtime_->topology().rank; }
  int size() const { return runtime_->topology().size; }
  const std::string& gpu() const { return device_->name(); }

  // Memory of the device, as long as the rank.
  Status Allocate(size_t bytes, char** memory);
  // Return when it has been done.
  Status Upload(char* memory, const std::string& bytes);
  Status Download(const char* memory, size_t bytes, std::string* out);
  // Puts a copy on the stream that computes, as a kernel of TensorFlow's.
  Status Compute(char* to, const char* from, size_t bytes);

  // Requests, after what the stream has been given so far. Memory must be
  // there until the reply is.
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

  // An error after a minute.
  static Status Wait(Reply reply, const std::string& what);

 private:
  DeviceRank(Runtime* runtime, std::shared_ptr<GpuDevice> device)
      : runtime_(runtime), device_(std::move(device)) {}

  Entry NewEntry(OpKind kind, const std::string& name);
  Reply SubmitRows(Entry entry, char* output);
  Reply Submit(Entry entry);
  Status Ready(std::shared_ptr<GpuEvent>* ready);
  Status Finish();

  Runtime* const runtime_;
  const std::shared_ptr<GpuDevice> device_;
  CudaStream stream_ = nullptr;
  std::shared_ptr<char> pinned_;
  std::vector<std::shared_ptr<char>> memory_;
};

// Calls `fn` for each of the worlds' ranks on a thread of its own, with the
// GPU `ordinal(rank)`, ends the job, and returns the first error.
Status RunDeviceRanks(std::vector<std::unique_ptr<World>> worlds,
                      const CudaApi* cuda,
                      const std::function<int(int rank)>& ordinal,
                      const std::function<Status(DeviceRank&)>& fn);

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_DEVICE_RANK_H_
