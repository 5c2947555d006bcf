#include "kernels/xla/handlers.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace tf_hvd {
namespace {

namespace ffi = ::xla::ffi;

CompiledCalls* calls_of_process = nullptr;

ffi::Error ToXla(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return ffi::Error::Success();
    case StatusCode::kInvalidArgument:
      return ffi::Error(ffi::ErrorCode::kInvalidArgument, status.message());
    case StatusCode::kFailedPrecondition:
      return ffi::Error(ffi::ErrorCode::kFailedPrecondition, status.message());
    case StatusCode::kAborted:
      return ffi::Error(ffi::ErrorCode::kUnknown, status.message());
    case StatusCode::kInternal:
      break;
  }
  return ffi::Error(ffi::ErrorCode::kInternal, status.message());
}

Buffer Argument(ffi::RemainingArgs arguments, size_t index) {
  const ffi::AnyBuffer buffer = *arguments.get<ffi::AnyBuffer>(index);
  return {buffer.untyped_data(), static_cast<int64_t>(buffer.element_count())};
}

Buffer Result(ffi::RemainingRets results, size_t index) {
  auto buffer = *results.get<ffi::AnyBuffer>(index);
  return {buffer->untyped_data(),
          static_cast<int64_t>(buffer->element_count())};
}

ffi::Error StartOn(void* stream, std::string_view call, int64_t tensors,
                   int64_t steps, ffi::RemainingArgs arguments,
                   ffi::RemainingRets results) {
  const auto count = static_cast<size_t>(tensors);
  Started started;
  started.stream = stream;
  started.call = call;
  for (size_t i = 0; i < count; ++i) {
    started.tensors.push_back(Argument(arguments, i));
    if (Result(results, i).data != started.tensors.back().data) {
      return ToXla(Internal("bug in tf_hvd: XLA has not aliased a tensor"));
    }
  }
  for (size_t i = count; i + 1 < results.size(); ++i) {
    started.outputs.push_back(Result(results, i));
  }
  const size_t numbers = count + static_cast<size_t>(steps);
  if (numbers > count) {
    const Buffer stamp = Argument(arguments, count);
    const auto* const given = static_cast<const int64_t*>(stamp.data);
    started.step = given[0];
    if (stamp.count > 1) started.sources = given[1];
  }
  if (arguments.size() > numbers) {
    started.iteration =
        *static_cast<int32_t*>(Argument(arguments, numbers).data);
  }
  started.ticket = Result(results, results.size() - 1).data;
  calls_of_process->Start(started);
  return ffi::Error::Success();
}

ffi::Error Start(std::string_view call, int64_t tensors, int64_t steps,
                 ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  return StartOn(nullptr, call, tensors, steps, arguments, results);
}

const void* TicketOf(ffi::RemainingArgs arguments) {
  return Argument(arguments, arguments.size() - 1).data;
}

ffi::Error EndOn(void* stream, ffi::RemainingArgs arguments,
                 ffi::RemainingRets) {
  return ToXla(calls_of_process->EndOn(stream, TicketOf(arguments)));
}

ffi::Future End(ffi::RemainingArgs arguments, ffi::RemainingRets) {
  ffi::Promise promise;
  ffi::Future future(promise);
  calls_of_process->End(TicketOf(arguments), [promise = std::move(promise)](
                                                 const Status& status) mutable {
    if (status.ok()) {
      promise.SetAvailable();
    } else {
      promise.SetError(ToXla(status));
    }
  });
  return future;
}

ffi::Error NumberOn(void* stream, std::string_view op, int64_t set,
                    ffi::Result<ffi::BufferR0<ffi::S32>> number) {
  return ToXla(calls_of_process->Number(op, static_cast<int32_t>(set), stream,
                                        number->typed_data()));
}

ffi::Error Number(std::string_view op, int64_t set,
                  ffi::Result<ffi::BufferR0<ffi::S32>> number) {
  return NumberOn(nullptr, op, set, number);
}

ffi::Error Fingerprints(ffi::BufferR0<ffi::PRED> wanted,
                        ffi::RemainingArgs values,
                        ffi::ResultBufferR1<ffi::S64> fingerprints) {
  int64_t* const bits = fingerprints->typed_data();
  std::fill_n(bits, values.size() + 1, 0);
  if (!*wanted.typed_data()) return ffi::Error::Success();
  for (size_t i = 0; i < values.size(); ++i) {
    const ffi::AnyBuffer value = *values.get<ffi::AnyBuffer>(i);
    bits[i] =
        calls_of_process->Fingerprint(value.untyped_data(), value.size_bytes());
  }
  return ffi::Error::Success();
}

ffi::Error Verdict(std::string_view verdict, ffi::BufferR1<ffi::PRED> wrong,
                   ffi::ResultBufferR0<ffi::PRED> passed) {
  return ToXla(calls_of_process->Verdict(verdict, wrong.typed_data(),
                                         wrong.element_count(),
                                         passed->typed_data()));
}

using Stream = ffi::PlatformStream<void*>;

// Operands written by xla_kernels.cc are read in the same way on a CPU and on a
// GPU, where the stream comes first.
template <typename Binding>
auto AsStart(Binding&& first) {
  return std::move(first)
      .template Attr<std::string_view>("call")
      .template Attr<int64_t>("tensors")
      .template Attr<int64_t>("steps")
      .RemainingArgs()
      .RemainingRets();
}

template <typename Binding>
auto AsEnd(Binding&& first) {
  return std::move(first).RemainingArgs().RemainingRets();
}

template <typename Binding>
auto AsNumber(Binding&& first) {
  return std::move(first)
      .template Attr<std::string_view>("op")
      .template Attr<int64_t>("set")
      .template Ret<ffi::BufferR0<ffi::S32>>();
}

XLA_FFI_DEFINE_HANDLER(kFingerprints, Fingerprints,
                       ffi::Ffi::Bind()
                           .Arg<ffi::BufferR0<ffi::PRED>>()
                           .RemainingArgs()
                           .Ret<ffi::BufferR1<ffi::S64>>());
XLA_FFI_DEFINE_HANDLER(kVerdict, Verdict,
                       ffi::Ffi::Bind()
                           .Attr<std::string_view>("verdict")
                           .Arg<ffi::BufferR1<ffi::PRED>>()
                           .Ret<ffi::BufferR0<ffi::PRED>>());

// No handler permits capture in a command buffer (a CUDA graph), which would
// run again without asking the other ranks. XLA therefore never captures them.
XLA_FFI_DEFINE_HANDLER(kStart, Start, AsStart(ffi::Ffi::Bind()));
XLA_FFI_DEFINE_HANDLER(kEnd, End, AsEnd(ffi::Ffi::Bind()));
XLA_FFI_DEFINE_HANDLER(kNumber, Number, AsNumber(ffi::Ffi::Bind()));
XLA_FFI_DEFINE_HANDLER(kStartOn, StartOn,
                       AsStart(ffi::Ffi::Bind().Ctx<Stream>()));
XLA_FFI_DEFINE_HANDLER(kEndOn, EndOn, AsEnd(ffi::Ffi::Bind().Ctx<Stream>()));
XLA_FFI_DEFINE_HANDLER(kNumberOn, NumberOn,
                       AsNumber(ffi::Ffi::Bind().Ctx<Stream>()));

std::string TextOf(const XLA_FFI_Api* api, XLA_FFI_Error* error) {
  XLA_FFI_Error_GetMessage_Args message;
  message.struct_size = XLA_FFI_Error_GetMessage_Args_STRUCT_SIZE;
  message.extension_start = nullptr;
  message.error = error;
  api->XLA_FFI_Error_GetMessage(&message);
  std::string text = message.message;
  XLA_FFI_Error_Destroy_Args destroy;
  destroy.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE;
  destroy.extension_start = nullptr;
  destroy.error = error;
  api->XLA_FFI_Error_Destroy(&destroy);
  return text;
}

}  // namespace

std::string RegisterHandlers(const XLA_FFI_Api* api, CompiledCalls* calls) {
  calls_of_process = calls;
  struct Handler {
    const char* target;
    XLA_FFI_Handler* on_host;
    XLA_FFI_Handler* on_gpu;
  };
  constexpr Handler kHandlers[] = {
      {kStartTarget, kStart, kStartOn},
      {kEndTarget, kEnd, kEndOn},
      {kNumberTarget, kNumber, kNumberOn},
      {kFingerprintsTarget, kFingerprints, nullptr},
      {kVerdictTarget, kVerdict, nullptr},
  };
  for (const Handler& one : kHandlers) {
    for (const auto& [platform, handler] :
         {std::pair("Host", one.on_host), std::pair("CUDA", one.on_gpu)}) {
      if (handler == nullptr) continue;
      XLA_FFI_Error* const error =
          ffi::Ffi::RegisterStaticHandler(api, one.target, platform, handler);
      if (error != nullptr) return TextOf(api, error);
    }
  }
  return "";
}

CompiledCalls* RegisteredCalls() { return calls_of_process; }

}  // namespace tf_hvd
