#include "kernels/xla/handlers.h"

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "xla/ffi/api/ffi.h"

// libtensorflow_cc's; the header that declares it wants those of MLIR.
namespace xla::ffi {
const XLA_FFI_Api* GetXlaFfiApi();
}

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

ffi::Error Start(std::string_view call, int64_t tensors, int64_t steps,
                 ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  const auto count = static_cast<size_t>(tensors);
  Started started;
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
    started.step = *static_cast<int64_t*>(Argument(arguments, count).data);
  }
  if (arguments.size() > numbers) {
    started.iteration =
        *static_cast<int32_t*>(Argument(arguments, numbers).data);
  }
  started.ticket = Result(results, results.size() - 1).data;
  calls_of_process->Start(started);
  return ffi::Error::Success();
}

ffi::Future End(ffi::RemainingArgs arguments, ffi::RemainingRets) {
  ffi::Promise promise;
  ffi::Future future(promise);
  calls_of_process->End(
      Argument(arguments, arguments.size() - 1).data,
      [promise = std::move(promise)](const Status& status) mutable {
        if (status.ok()) {
          promise.SetAvailable();
        } else {
          promise.SetError(ToXla(status));
        }
      });
  return future;
}

ffi::Error Number(std::string_view op, int64_t set,
                  ffi::Result<ffi::BufferR0<ffi::S32>> number) {
  return ToXla(calls_of_process->Number(op, static_cast<int32_t>(set),
                                        number->typed_data()));
}

ffi::Error SumRows(int64_t dtype, int64_t columns, ffi::RemainingArgs arguments,
                   ffi::RemainingRets results) {
  return ToXla(calls_of_process->SumRows(
      static_cast<DType>(dtype), Argument(arguments, 0), Argument(arguments, 1),
      Argument(arguments, 2), Result(results, 0), columns));
}

XLA_FFI_DEFINE_HANDLER(kStartHandler, Start,
                       ffi::Ffi::Bind()
                           .Attr<std::string_view>("call")
                           .Attr<int64_t>("tensors")
                           .Attr<int64_t>("steps")
                           .RemainingArgs()
                           .RemainingRets());
XLA_FFI_DEFINE_HANDLER(kEndHandler, End,
                       ffi::Ffi::Bind().RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER(kNumberHandler, Number,
                       ffi::Ffi::Bind()
                           .Attr<std::string_view>("op")
                           .Attr<int64_t>("set")
                           .Ret<ffi::BufferR0<ffi::S32>>());

XLA_FFI_DEFINE_HANDLER(kSumRowsHandler, SumRows,
                       ffi::Ffi::Bind()
                           .Attr<int64_t>("dtype")
                           .Attr<int64_t>("columns")
                           .RemainingArgs()
                           .RemainingRets());

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

std::string RegisterHandlers(CompiledCalls* calls) {
  calls_of_process = calls;
  const XLA_FFI_Api* const api = ffi::GetXlaFfiApi();
  constexpr std::pair<const char*, XLA_FFI_Handler*> kHandlers[] = {
      {kStartTarget, kStartHandler},
      {kEndTarget, kEndHandler},
      {kNumberTarget, kNumberHandler},
      {kSumRowsTarget, kSumRowsHandler},
  };
  for (const auto& [name, handler] : kHandlers) {
    XLA_FFI_Error* const error =
        ffi::Ffi::RegisterStaticHandler(api, name, "Host", handler);
    if (error != nullptr) return TextOf(api, error);
  }
  return "";
}

CompiledCalls* RegisteredCalls() { return calls_of_process; }

}  // namespace tf_hvd
