// Whole jobs on software GPUs: ranks as threads, each with a Runtime and with
// tensors in device memory.
#ifndef TF_HVD_TESTS_GPU_GPU_JOB_H_
#define TF_HVD_TESTS_GPU_GPU_JOB_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/software_gpu.h"
#include "tests/gpu/software_nccl.h"
#include "tests/runtime/job.h"

namespace tf_hvd {

// A job in which rank r has device r; one rank may have no driver.
struct GpuJob {
  GpuJob(int ranks, uint64_t seed, bool with_nccl = true,
         std::vector<int> nodes = {}, int without_driver = -1,
         int64_t end_limit_ns = 60 * kSecond)
      : gpu(ranks, seed),
        nccl(&gpu),
        job(nodes.empty() ? std::vector<int>{ranks} : std::move(nodes),
            Config(), 8, 64 * 1024,
            [&, with_nccl, without_driver, end_limit_ns](int rank) {
              GpuAccess access;
              if (rank == without_driver) return access;
              access.devices =
                  std::make_shared<GpuDevices>(SoftwareGpu::Cuda(), rank);
              if (with_nccl) access.nccl = SoftwareNccl::Api();
              access.no_nccl = with_nccl ? "" : "rank 2 (c) has no NCCL: why";
              access.warn = [this](const std::string& text) {
                const std::lock_guard<std::mutex> lock(mutex);
                warnings.push_back(text);
              };
              access.options.staging_bytes = 4096;
              access.options.end_limit_ns = end_limit_ns;
              return access;
            }) {}

  void ExpectNoFaults() {
    for (const std::string& fault : gpu.Faults()) ADD_FAILURE() << fault;
  }

  SoftwareGpu gpu;
  SoftwareNccl nccl;
  std::mutex mutex;
  std::vector<std::string> warnings;  // guarded by mutex
  Job job;
};

// One rank's side of TensorFlow: a stream, and tensors on the device.
class Side {
 public:
  Side(GpuJob* job, Rank* rank)
      : gpu_(&job->gpu), rank_(rank), stream_(gpu_->NewStream(rank->rank())) {}

  // Allocates memory that a kernel fills with the numbers later.
  template <typename T>
  char* Tensor(const std::vector<T>& values) {
    const size_t bytes = values.size() * sizeof(T);
    const auto* const begin = reinterpret_cast<const char*>(values.data());
    std::vector<char> raw(begin, begin + bytes);
    char* const memory = gpu_->NewMemory(rank_->rank(), bytes, "a tensor");
    gpu_->Write(stream_, memory, std::move(raw));
    return memory;
  }

  // Returns the contents at this point of the stream.
  template <typename T>
  std::vector<T> Values(const void* memory, size_t count) {
    const auto raw = gpu_->Read(stream_, memory, count * sizeof(T));
    gpu_->Settle();
    std::vector<T> values(count);
    std::memcpy(values.data(), raw->data(), raw->size());
    return values;
  }

  Entry EntryOf(OpKind kind, const std::string& name, int32_t set = kWorldSet) {
    Entry entry = Rank::Plain(kind, name, set);
    entry.request.device = DeviceKind::kGpu;
    entry.memory = Here();
    return entry;
  }

  Memory Here() {
    Memory memory;
    memory.kind = MemoryKind::kDevice;
    memory.device = rank_->rank();
    EXPECT_TRUE(Ready(&memory.ready).ok());
    return memory;
  }

  CudaStream stream() const { return stream_; }

  Status Ready(std::shared_ptr<GpuEvent>* ready) {
    std::shared_ptr<GpuDevice> device;
    TF_HVD_RETURN_IF_ERROR(
        rank_->runtime()->gpus()->OfStream(stream_, &device));
    return device->Record(stream_, ready);
  }

  // In place.
  Pending Allreduce(const std::string& name, char* memory, int64_t count,
                    ReduceOp op = ReduceOp::kSum) {
    Entry entry = EntryOf(OpKind::kAllreduce, name);
    entry.request.reduce_op = op;
    entry.request.tensors.push_back({DType::kFloat32, {count}});
    entry.tensors.push_back({memory, memory, count});
    return rank_->Submit(std::move(entry));
  }

  // The rows of all ranks, once the request has ended.
  Pending Allgather(const std::string& name, const char* memory, int64_t rows,
                    char** output) {
    Entry entry = EntryOf(OpKind::kAllgather, name);
    entry.request.tensors.push_back({DType::kInt64, {-1}});
    entry.tensors.push_back({memory, nullptr, rows});
    entry.rows = {rows};
    entry.allocate = [this, output](size_t, const std::vector<int64_t>& dims,
                                    void** given) {
      int64_t all = 0;
      for (const int64_t of_rank : dims) all += of_rank;
      // The memory had other contents until a moment ago.
      *output = Tensor(std::vector<int64_t>(static_cast<size_t>(all), -1));
      *given = *output;
      return Status::Ok();
    };
    entry.allocated = [this](std::shared_ptr<GpuEvent>* ready) {
      return Ready(ready);
    };
    return rank_->Submit(std::move(entry));
  }

 private:
  SoftwareGpu* const gpu_;
  Rank* const rank_;
  const CudaStream stream_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_GPU_JOB_H_
