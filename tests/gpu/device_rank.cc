#include "tests/gpu/device_rank.h"

#include <chrono>
#include <thread>
#include <utility>

#include "runtime/transport/gpu/devices.h"

namespace tf_hvd {
namespace {

constexpr std::chrono::seconds kLimit{60};

}  // namespace

Status DeviceRank::Open(Runtime* runtime, const CudaApi* cuda, int ordinal,
                        std::unique_ptr<DeviceRank>* rank) {
  rank->reset(new DeviceRank(runtime));
  return DeviceSide::Open(cuda, ordinal, &(*rank)->side_);
}

// As in kernels/collective_kernel.cc: the runtime's own device.
Status DeviceRank::Ready(std::shared_ptr<GpuEvent>* ready) {
  std::shared_ptr<GpuDevice> device;
  TF_HVD_RETURN_IF_ERROR(runtime_->gpus()->OfStream(side_->stream(), &device));
  return device->Record(side_->stream(), ready);
}

Entry DeviceRank::NewEntry(OpKind kind, const std::string& name) {
  Entry entry;
  entry.name = name;
  entry.request.kind = kind;
  entry.request.device = DeviceKind::kGpu;
  entry.memory.kind = MemoryKind::kDevice;
  entry.memory.device = side_->device()->ordinal();
  return entry;
}

Reply DeviceRank::Submit(Entry entry) {
  auto promise = std::make_shared<std::promise<Status>>();
  Reply reply = promise->get_future();
  if (entry.memory.kind == MemoryKind::kDevice && !forgets_) {
    const Status status = Ready(&entry.memory.ready);
    if (!status.ok()) {
      promise->set_value(status);
      return reply;
    }
  }
  entry.done = Completion(
      [promise](const Status& status, int32_t) { promise->set_value(status); });
  runtime_->Submit(std::move(entry));
  return reply;
}

Reply DeviceRank::SubmitRows(Entry entry, char* output) {
  entry.allocate = [output](size_t, const std::vector<int64_t>&, void** given) {
    *given = output;
    return Status::Ok();
  };
  entry.allocated = [this](std::shared_ptr<GpuEvent>* ready) {
    return Ready(ready);
  };
  return Submit(std::move(entry));
}

Reply DeviceRank::Allreduce(const std::string& name, DType dtype,
                            const std::vector<DeviceTensor>& group, ReduceOp op,
                            double prescale, double postscale) {
  Entry entry = NewEntry(OpKind::kAllreduce, name);
  entry.request.reduce_op = op;
  entry.request.prescale = prescale;
  entry.request.postscale = postscale;
  for (const DeviceTensor& tensor : group) {
    entry.request.tensors.push_back({dtype, {tensor.count}});
    entry.tensors.push_back({tensor.input, tensor.output, tensor.count});
  }
  return Submit(std::move(entry));
}

Reply DeviceRank::Allgather(const std::string& name, DType dtype,
                            const DeviceTensor& rows) {
  Entry entry = NewEntry(OpKind::kAllgather, name);
  entry.request.tensors.push_back({dtype, {-1}});
  entry.tensors.push_back({rows.input, nullptr, rows.count});
  entry.rows = {rows.count};
  return SubmitRows(std::move(entry), rows.output);
}

Reply DeviceRank::Broadcast(const std::string& name, DType dtype,
                            const DeviceTensor& tensor, int root) {
  Entry entry = NewEntry(OpKind::kBroadcast, name);
  entry.request.root = root;
  entry.request.tensors.push_back({dtype, {tensor.count}});
  entry.tensors.push_back({tensor.input, tensor.output, tensor.count});
  return Submit(std::move(entry));
}

Reply DeviceRank::Alltoall(const std::string& name, DType dtype,
                           const DeviceTensor& rows,
                           std::vector<int64_t> splits) {
  Entry entry = NewEntry(OpKind::kAlltoall, name);
  entry.request.tensors.push_back({dtype, {-1}});
  entry.tensors.push_back({rows.input, nullptr, rows.count});
  entry.rows = std::move(splits);
  return SubmitRows(std::move(entry), rows.output);
}

Reply DeviceRank::Reducescatter(const std::string& name, DType dtype,
                                const DeviceTensor& tensor, ReduceOp op) {
  Entry entry = NewEntry(OpKind::kReducescatter, name);
  entry.request.reduce_op = op;
  entry.request.tensors.push_back({dtype, {tensor.count}});
  entry.tensors.push_back({tensor.input, tensor.output, tensor.count});
  return Submit(std::move(entry));
}

Reply DeviceRank::Barrier(const std::string& name) {
  Entry entry;
  entry.name = name;
  entry.request.kind = OpKind::kBarrier;
  return Submit(std::move(entry));
}

Status DeviceRank::Wait(Reply reply, const std::string& what) {
  if (reply.wait_for(kLimit) != std::future_status::ready) {
    return Aborted(what + " has not ended");
  }
  return reply.get().WithContext(what);
}

Status RunDeviceRanks(std::vector<std::unique_ptr<World>> worlds,
                      const CudaApi* cuda,
                      const std::function<int(int rank)>& ordinal,
                      const std::function<Status(DeviceRank&)>& fn) {
  std::vector<Status> statuses(worlds.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < worlds.size(); ++i) {
    threads.emplace_back([&, i] {
      const int number = worlds[i]->topology().rank;
      const auto runtime = MakeRuntime(Config(), std::move(worlds[i]));
      std::unique_ptr<DeviceRank> rank;
      Status status =
          DeviceRank::Open(runtime.get(), cuda, ordinal(number), &rank);
      if (status.ok()) status = fn(*rank);
      runtime->Shutdown(status.ok() ? "the end" : status.message(),
                        status.ok());
      statuses[i] = status.WithContext("rank " + std::to_string(number));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

}  // namespace tf_hvd
