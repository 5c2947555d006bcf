// For compiled_overlap.py: collectives that take a fixed time and no processor,
// so that the time a compiled step loses is the time that XLA does not overlap.
// There are two kinds: tf_hvd's ops with a clock in place of the runtime, and
// BarePair, which is a minimal pair of XLA calls: one starts, the other waits.
#include <dlfcn.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

#include "kernels/xla/xla_library.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "xla/ffi/api/ffi.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape_util.h"

// From libtensorflow_cc; the header that declares it needs MLIR's headers.
namespace xla::ffi {
const XLA_FFI_Api* GetXlaFfiApi();
}

namespace tf_hvd {
namespace {

namespace ffi = ::xla::ffi;
using Clock = std::chrono::steady_clock;

std::chrono::microseconds duration;

// Calls in progress: the end time and the callback of each. Any thread; never
// destroyed.
class Timer {
 public:
  static Timer& Get() {
    static Timer* const timer = new Timer;
    return *timer;
  }

  void Start(const void* ticket) {
    const std::scoped_lock lock(mutex_);
    over_[ticket] = Clock::now() + duration;
  }

  void End(const void* ticket, std::function<void()> ended) {
    const std::scoped_lock lock(mutex_);
    waiting_.emplace(over_.at(ticket), std::move(ended));
    over_.erase(ticket);
    changed_.notify_one();
  }

 private:
  Timer() {
    std::thread([this] { Run(); }).detach();
  }

  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      if (waiting_.empty()) {
        changed_.wait(lock);
      } else if (Clock::now() < waiting_.begin()->first) {
        changed_.wait_until(lock, waiting_.begin()->first);
      } else {
        const std::function<void()> ended = std::move(waiting_.begin()->second);
        waiting_.erase(waiting_.begin());
        lock.unlock();
        ended();
        lock.lock();
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<const void*, Clock::time_point> over_;
  std::multimap<Clock::time_point, std::function<void()>> waiting_;
};

// The part of the runtime's interface that an allreduce needs.
class PretendedCalls : public CompiledCalls {
 public:
  void NoteCompilation(const std::string&) override {}
  void Start(const Started& started) override {
    Timer::Get().Start(started.ticket);
  }
  void End(const void* ticket, Ended ended) override {
    Timer::Get().End(ticket,
                     [ended = std::move(ended)] { ended(Status::Ok()); });
  }
  Status EndOn(void*, const void*) override { return NotPretended(); }
  Status Number(std::string_view, int32_t, void*, int32_t*) override {
    return NotPretended();
  }
  int64_t Fingerprint(const void*, size_t) override { return 0; }
  Status Verdict(std::string_view, const bool*, size_t, bool*) override {
    return NotPretended();
  }
  Status Ranks(int32_t, int64_t* ranks, int64_t* place) override {
    *ranks = 2;
    *place = 0;
    return Status::Ok();
  }

 private:
  static Status NotPretended() {
    return Internal("only allreduces are supported");
  }
};

ffi::Error StartBare(ffi::AnyBuffer, ffi::Result<ffi::AnyBuffer> result) {
  Timer::Get().Start(result->untyped_data());
  return ffi::Error::Success();
}

ffi::Future EndBare(ffi::AnyBuffer argument, ffi::Result<ffi::AnyBuffer>) {
  ffi::Promise promise;
  ffi::Future future(promise);
  Timer::Get().End(
      argument.untyped_data(),
      [promise = std::move(promise)]() mutable { promise.SetAvailable(); });
  return future;
}

XLA_FFI_DEFINE_HANDLER(
    kStartBare, StartBare,
    ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());
XLA_FFI_DEFINE_HANDLER(
    kEndBare, EndBare,
    ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());

xla::XlaOp Aliased(xla::XlaOp operand, const xla::Shape& shape,
                   const char* target, xla::CustomCallSchedule schedule) {
  return xla::CustomCall(operand.builder(), target, {operand}, shape, "",
                         /*has_side_effect=*/true, {{{}, {0, {}}}},
                         /*literal=*/nullptr, schedule,
                         xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
}

class BarePair : public tf::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(tf::XlaOpKernelContext* ctx) override {
    const absl::StatusOr<xla::Shape> shape = ctx->InputXlaShape(0);
    OP_REQUIRES_OK(ctx, shape.status());
    const xla::XlaOp started =
        Aliased(ctx->Input(0), *shape, "pretended_start",
                xla::CustomCallSchedule::SCHEDULE_EARLIEST);
    ctx->SetOutput(0, Aliased(started, *shape, "pretended_end",
                              xla::CustomCallSchedule::SCHEDULE_LATEST));
  }
};

REGISTER_OP("BarePair")
    .Input("tensor: float")
    .Output("result: float")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::UnchangedShape);

REGISTER_KERNEL_BUILDER(Name("BarePair").Device("XLA_CPU_JIT"), BarePair);

}  // namespace
}  // namespace tf_hvd

// Makes each collective of this process take `microseconds`. `xla_library`:
// tf_hvd's XLA part, which must not be open yet.
extern "C" __attribute__((visibility("default"))) const char* tf_hvd_pretend(
    const char* xla_library, int microseconds) {
  using tf_hvd::ffi::Ffi;
  tf_hvd::duration = std::chrono::microseconds(microseconds);
  const XLA_FFI_Api* const api = xla::ffi::GetXlaFfiApi();
  if (Ffi::RegisterStaticHandler(api, "pretended_start", "Host",
                                 tf_hvd::kStartBare) != nullptr ||
      Ffi::RegisterStaticHandler(api, "pretended_end", "Host",
                                 tf_hvd::kEndBare) != nullptr) {
    return "XLA rejected the handlers";
  }
  void* const library = dlopen(xla_library, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return dlerror();
  auto* const open =
      reinterpret_cast<tf_hvd::XlaOpen*>(dlsym(library, tf_hvd::kXlaOpen));
  return open == nullptr ? dlerror() : open(new tf_hvd::PretendedCalls);
}
