#include "runtime/transport/gpu/devices.h"

namespace tf_hvd {

Status GpuDevices::OfOrdinal(int ordinal, std::shared_ptr<GpuDevice>* device) {
  const MutexLock lock(&mutex_);
  std::shared_ptr<GpuDevice>& opened = opened_[ordinal];
  if (opened == nullptr) {
    TF_HVD_RETURN_IF_ERROR(GpuDevice::Open(api_, ordinal, &opened));
  }
  *device = opened;
  return Status::Ok();
}

Status GpuDevices::OfStream(CudaStream stream,
                            std::shared_ptr<GpuDevice>* device) {
  CudaContext context = nullptr;
  TF_HVD_RETURN_IF_ERROR(FromCuda(*api_, "cuStreamGetCtx",
                                  api_->stream_get_ctx(stream, &context)));
  TF_HVD_RETURN_IF_ERROR(
      FromCuda(*api_, "cuCtxPushCurrent", api_->ctx_push_current(context)));
  int ordinal = 0;
  const Status found =
      FromCuda(*api_, "cuCtxGetDevice", api_->ctx_get_device(&ordinal));
  TF_HVD_RETURN_IF_ERROR(
      FromCuda(*api_, "cuCtxPopCurrent", api_->ctx_pop_current(&context)));
  TF_HVD_RETURN_IF_ERROR(found);
  return OfOrdinal(ordinal, device);
}

Status GpuDevices::Any(std::shared_ptr<GpuDevice>* device) {
  {
    const MutexLock lock(&mutex_);
    for (const auto& [ordinal, opened] : opened_) {
      if (opened == nullptr) continue;
      *device = opened;
      return Status::Ok();
    }
  }
  TF_HVD_RETURN_IF_ERROR(FromCuda(*api_, "cuInit", api_->init(0)));
  int count = 0;
  TF_HVD_RETURN_IF_ERROR(
      FromCuda(*api_, "cuDeviceGetCount", api_->device_get_count(&count)));
  return OfOrdinal(preferred_ < count ? preferred_ : 0, device);
}

}  // namespace tf_hvd
