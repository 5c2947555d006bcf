// A simulated GPU of TensorFlow: a device of type GPU with the stream and
// memory of a SoftwareGpu. Opened by tf.load_library, it lets the GPU kernels
// of tf_hvd run in TensorFlow itself. Opened as TF_HVD_CUDA_LIBRARY, it is the
// driver of the same machine.
//
// As on TensorFlow's own GPUs, one stream computes, work on it runs late, and
// memory is reused as soon as TensorFlow releases it, in the order of that
// stream.
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/common_runtime/device_factory.h"
#include "tensorflow/core/common_runtime/local_device.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/tensor.h"
#include "tests/gpu/software_gpu.h"
#include "tests/gpu/software_nccl.h"
#include "xla/stream_executor/stream.h"

namespace tf_hvd {
namespace {

namespace tf = ::tensorflow;
namespace se = ::stream_executor;

// With an NCCL for ranks in processes on this machine, or accessible to an MPI
// that treats it as host memory.
SoftwareGpu& Machine() {
  static auto* const gpu = [] {
    auto* const made =
        new SoftwareGpu(/*devices=*/1, static_cast<uint64_t>(getpid()));
    new SoftwareNccl(
        made, std::make_unique<FileBoard>(P_tmpdir, "tf_hvd-software-nccl-"));
    if (std::getenv("TF_HVD_SOFTWARE_HOST_IS_IN") != nullptr) made->LetHostIn();
    return made;
  }();
  return *gpu;
}

// A program that opens this as the driver finds a GPU, with or without
// TensorFlow.
[[maybe_unused]] const bool kMachineIsThere = (Machine(), true);

// tf_hvd only needs the handle of TensorFlow's stream.
class SoftwareStream final : public se::Stream {
 public:
  explicit SoftwareStream(CudaStream stream) : stream_(stream) {}

  PlatformSpecificHandle platform_specific_handle() const override {
    PlatformSpecificHandle handle;
    handle.stream = stream_;
    return handle;
  }
  bool ok() const override { return true; }
  absl::StatusOr<Stream*> GetOrCreateSubStream() override { return No(); }
  void ReturnSubStream(Stream*) override {}
  absl::Status WaitFor(Stream*) override { return No(); }
  absl::Status WaitFor(se::Event*) override { return No(); }
  absl::Status RecordEvent(se::Event*) override { return No(); }
  absl::Status Memcpy(void*, const se::DeviceAddressBase&, uint64_t) override {
    return No();
  }
  absl::Status Memcpy(se::DeviceAddressBase*, const void*, uint64_t) override {
    return No();
  }
  absl::Status BlockHostUntilDone() override {
    Machine().Settle();
    return absl::OkStatus();
  }
  absl::Status DoHostCallbackWithStatus(
      absl::AnyInvocable<absl::Status() &&>) override {
    return No();
  }
  se::StreamExecutor* parent() const override { return nullptr; }
  se::CudaComputeCapability GetCudaComputeCapability() const override {
    return {};
  }
  se::RocmComputeCapability GetRocmComputeCapability() const override {
    return {};
  }
  se::OneAPIComputeCapability GetOneAPIComputeCapability() const override {
    return {};
  }
  std::variant<se::StreamPriority, int> priority() const override { return 0; }
  const std::string& GetName() const override { return name_; }
  void SetName(std::string name) override { name_ = std::move(name); }

 private:
  static absl::Status No() {
    return absl::UnimplementedError("a stream of software");
  }

  const CudaStream stream_;
  std::string name_ = "software";
};

class SoftwareContext final : public tf::DeviceContext {
 public:
  SoftwareContext() : cuda_(Machine().NewStream(0)), stream_(cuda_) {}

  se::Stream* stream() const override { return &stream_; }
  CudaStream cuda() const { return cuda_; }

  void CopyCPUTensorToDevice(const tf::Tensor* cpu, tf::Device*,
                             tf::Tensor* device, tf::StatusCallback done,
                             bool) const override {
    const auto* const begin = static_cast<const char*>(cpu->data());
    // TensorFlow treats some int32 tensors on the device as the host's; a GPU
    // still copies them.
    if (!Machine().IsOfHost(begin)) {
      return CopyTensorInSameDevice(cpu, nullptr, device, std::move(done));
    }
    Machine().Write(cuda_, device->data(), {begin, begin + cpu->TotalBytes()});
    done(absl::OkStatus());
  }
  void CopyDeviceTensorToCPU(const tf::Tensor* device, absl::string_view,
                             tf::Device*, tf::Tensor* cpu,
                             tf::StatusCallback done) override {
    const auto bytes =
        Machine().Read(cuda_, device->data(), device->TotalBytes());
    Machine().Settle();
    std::copy(bytes->begin(), bytes->end(), static_cast<char*>(cpu->data()));
    done(absl::OkStatus());
  }
  void CopyTensorInSameDevice(const tf::Tensor* from, tf::Device*,
                              tf::Tensor* to,
                              tf::StatusCallback done) const override {
    Machine().Copy(cuda_, to->data(), from->data(), from->TotalBytes());
    done(absl::OkStatus());
  }

 private:
  const CudaStream cuda_;
  mutable SoftwareStream stream_;
};

// Released memory may be reused by later work on the stream.
class SoftwareAllocator final : public tf::Allocator {
 public:
  explicit SoftwareAllocator(CudaStream stream) : stream_(stream) {}

  std::string Name() override { return "software_gpu"; }
  void* AllocateRaw(size_t, size_t bytes) override {
    return Machine().NewMemory(0, bytes, "TensorFlow's memory");
  }
  void DeallocateRaw(void* memory) override {
    Machine().FreeOn(stream_, memory);
  }

 private:
  const CudaStream stream_;
};

class SoftwareDevice final : public tf::LocalDevice {
 public:
  SoftwareDevice(const tf::SessionOptions& options,
                 const tf::DeviceAttributes& attributes)
      : LocalDevice(options, attributes),
        context_(new SoftwareContext),
        allocator_(context_->cuda()) {
    info_.stream = context_->stream();
    info_.default_context = context_;
    info_.gpu_id = 0;
    set_tensorflow_accelerator_device_info(&info_);
  }
  ~SoftwareDevice() override { context_->Unref(); }

  absl::Status Sync() override {
    Machine().Settle();
    return absl::OkStatus();
  }
  absl::Status TryGetDeviceContext(tf::DeviceContext** context) override {
    context_->Ref();
    *context = context_;
    return absl::OkStatus();
  }
  tf::Allocator* GetAllocator(tf::AllocatorAttributes attributes) override {
    return attributes.on_host() ? tf::cpu_allocator() : &allocator_;
  }
  absl::Status MakeTensorFromProto(const tf::TensorProto& proto,
                                   const tf::AllocatorAttributes attributes,
                                   tf::Tensor* tensor) override {
    tf::Tensor parsed(proto.dtype());
    if (!parsed.FromProto(tf::cpu_allocator(), proto)) {
      return absl::InvalidArgumentError("a tensor that cannot be read");
    }
    // Tensors that are not plain bytes stay on the host.
    if (attributes.on_host() || !tf::DataTypeCanUseMemcpy(parsed.dtype())) {
      *tensor = parsed;
      return absl::OkStatus();
    }
    *tensor = tf::Tensor(&allocator_, parsed.dtype(), parsed.shape());
    context_->CopyCPUTensorToDevice(
        &parsed, this, tensor, [](const absl::Status&) {}, true);
    return absl::OkStatus();
  }

 private:
  SoftwareContext* const context_;
  SoftwareAllocator allocator_;
  tf::DeviceBase::AcceleratorDeviceInfo info_;
};

class SoftwareDeviceFactory final : public tf::DeviceFactory {
 public:
  absl::Status ListPhysicalDevices(std::vector<std::string>* devices) override {
    devices->push_back("/physical_device:GPU:0");
    return absl::OkStatus();
  }
  absl::Status CreateDevices(
      const tf::SessionOptions& options, const std::string& prefix,
      std::vector<std::unique_ptr<tf::Device>>* devices) override {
    devices->push_back(std::make_unique<SoftwareDevice>(
        options,
        tf::Device::BuildDeviceAttributes(
            prefix + "/device:GPU:0", tf::DeviceType(tf::DEVICE_GPU),
            tf::Bytes(size_t{1} << 30), tf::DeviceLocality(), "software")));
    return absl::OkStatus();
  }
};

REGISTER_LOCAL_DEVICE_FACTORY(tf::DEVICE_GPU, SoftwareDeviceFactory, 210);

}  // namespace
}  // namespace tf_hvd

// The faults that were found, one per line; for ctypes.
extern "C" __attribute__((visibility("default"))) const char*
tf_hvd_software_gpu_faults() {
  static auto* const text = new std::string;
  text->clear();
  for (const std::string& fault : tf_hvd::Machine().Faults()) {
    *text += fault + "\n";
  }
  return text->c_str();
}

// Number of our kernels and copies that have been enqueued on streams.
extern "C" __attribute__((visibility("default"))) int64_t
tf_hvd_software_gpu_launches() {
  const auto counts = tf_hvd::Machine().counts();
  return counts.launches + counts.copies;
}
