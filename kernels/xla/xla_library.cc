// Registers the kernels that XLA compiles collectives with, and opens their
// library when the first kernel is made. Unlike XLA's own form, a registration
// by name works no matter how late this library is loaded.
#include "kernels/xla/xla_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "base/shared_library.h"
#include "base/types.h"
#include "kernels/tf_adapters.h"

namespace tf_hvd {
namespace {

// Opened once, never closed. Any thread.
class XlaPart {
 public:
  static const XlaPart& Get() {
    static const auto* const part = new XlaPart;
    return *part;
  }

  const std::string& error() const { return error_; }
  tf::OpKernel* Make(tf::OpKernelConstruction* ctx) const { return make_(ctx); }

 private:
  XlaPart() {
    std::string path = PathOf(reinterpret_cast<void*>(&Get), "");
    path.replace(path.find_last_of('/') + 1, std::strlen(kOwnPrefix),
                 kXlaPrefix);
    if (access(path.c_str(), R_OK) != 0) {
      error_ =
          "this wheel was built without XLA's headers, which TensorFlow "
          "includes from 2.20 on";
      return;
    }
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      error_ = dlerror();
      return;
    }
    XlaOpen* open = nullptr;
    Symbols symbols(library);
    symbols.Find(kXlaOpen, &open);
    symbols.Find(kXlaMake, &make_);
    if (symbols.missing() != nullptr) {
      error_ = path + " does not export " + symbols.missing();
    } else if (const char* error = open(DefaultCompiledCalls())) {
      error_ = error;
    }
  }

  XlaMake* make_ = nullptr;
  std::string error_;
};

tf::OpKernel* MakeKernel(tf::OpKernelConstruction* ctx) {
  const XlaPart& part = XlaPart::Get();
  if (part.error().empty()) return part.Make(ctx);
  ctx->SetStatus(absl::UnimplementedError(
      "tf_hvd cannot compile " + ctx->def().op() +
      " with XLA here; use jit_compile=False: " + part.error()));
  return nullptr;
}

// In addition to those that OpsOf lists.
constexpr const char* kOps[] = {
    "HorovodBroadcastInplaceResource",
    "HorovodBarrier",
    "HorovodJoin",
    "HorovodFingerprints",
    "HorovodVerdict",
    "HorovodSize",
    "HorovodProcessSetIncluded",
    "HorovodRank",
    "HorovodLocalRank",
    "HorovodLocalSize",
    "HorovodCrossRank",
    "HorovodCrossSize",
};

void Register(const char* op) {
  for (const char* device : {"XLA_CPU_JIT", "XLA_GPU_JIT"}) {
    const tf::kernel_factory::OpKernelRegistrar registrar(
        tf::KernelDefBuilder(op).Device(device).Build(), op, MakeKernel);
  }
}

[[maybe_unused]] const bool registered = [] {
  for (const OpKind kind : TensorKinds()) {
    for (const std::string& op : OpsOf(kind)) Register(op.c_str());
  }
  for (const char* op : kOps) Register(op);
  return true;
}();

}  // namespace
}  // namespace tf_hvd
