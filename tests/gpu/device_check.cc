// device_check [--cuda=LIBRARY] [--device=N] [--large=0]
//
// Compares the kernels of compute/device_*.h on a GPU with the same functions
// on the host, bit for bit. It covers kernels that move, with factors, on rows
// of all lengths at all offsets, including zeros; one row of more than 2^31
// elements if there is memory for it; and kernels that sum
// (device_sums_check.h). The bits of a NaN may differ: GPUs have only one NaN.
//
// For tests/run_gpu.sh: the last line has the result. Exits with 0 on success,
// and with 3 if there is no GPU.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "compute/half_float.h"
#include "tests/gpu/device_side.h"
#include "tests/gpu/device_sums_check.h"
#include "tests/gpu/mirror.h"
#include "tests/gpu/program_options.h"
#include "tests/gpu/software_kernels.h"
#include "tests/gpu/software_sums.h"

namespace tf_hvd {
namespace {

constexpr int kThreads = 256;

struct Row {
  int64_t count;
  int in_offset = 0;  // elements after an aligned address
  int out_offset = 0;
  bool zeros = false;
};

struct Layout {
  const char* name;
  std::vector<Row> rows;
  int64_t tile;
};

std::vector<Layout> Layouts(std::mt19937_64* random) {
  Layout offsets{"offsets", {}, 64};
  for (int in = 0; in < 18; ++in) {
    for (int out = 0; out < 18; ++out) {
      const int count = (in * 18 + out) % 71;
      offsets.rows.push_back({count, in, out, count % 5 == 4});
    }
  }
  Layout tiny{"tiny", {}, 256};
  for (int i = 0; i < 700; ++i) tiny.rows.push_back({i % 4, i % 7, i % 5});
  Layout any{"any", {}, 4096};
  for (int i = 0; i < 60; ++i) {
    const auto most = uint64_t{1} << ((*random)() % 15);
    any.rows.push_back({static_cast<int64_t>((*random)() % most),
                        static_cast<int>((*random)() % 16),
                        static_cast<int>((*random)() % 16),
                        (*random)() % 8 == 0});
  }
  return {
      offsets, tiny, any, {"long", {{5, 1, 2}, {200'001, 3, 3}, {2}}, 8192}};
}

struct Factors {
  double factor;
  double divisor;
};

bool Begins(const std::string& text, const char* with) {
  return text.rfind(with, 0) == 0;
}

std::vector<Factors> FactorsFor(const std::string& kernel) {
  if (Begins(kernel, "tf_hvd_copy") || kernel == "tf_hvd_scale_bool") {
    return {{1, 1}};
  }
  return {{1, 1}, {0.1, 1}, {-3, 1}, {5, 7}};
}

// Random bits, and often zeros, infinities, NaNs and denormals of some type.
void Draw(std::vector<char>* bytes, size_t element, std::mt19937_64* random) {
  constexpr uint16_t kTops[] = {0,      0x8000, 0x7f80, 0xff80, 0x7c00,
                                0x7ff0, 0x7fc0, 0x0001, 0x8001, 0x3c00};
  for (size_t at = 0; at + element <= bytes->size(); at += element) {
    uint64_t value = (*random)();
    if (value % 8 == 0) value = 0;
    std::memcpy(bytes->data() + at, &value, element);
    const uint64_t which = (*random)() % 40;
    if (element > 1 && which < std::size(kTops)) {
      std::memcpy(bytes->data() + at + element - 2, &kTops[which], 2);
    }
  }
}

template <typename T>
T Value(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

// Whether the element that a kernel of this name writes is a NaN.
bool IsNan(const std::string& kernel, size_t bytes, const char* at) {
  if (Begins(kernel, "tf_hvd_copy")) return false;
  const auto ends = [&kernel](const std::string& with) {
    return kernel.size() > with.size() &&
           kernel.compare(kernel.size() - with.size(), with.size(), with) == 0;
  };
  if (bytes == 8) {
    return ends("_float64") && Value<double>(at) != Value<double>(at);
  }
  if (bytes == 4) {
    const bool is_integer = ends("int32");
    return !is_integer && Value<float>(at) != Value<float>(at);
  }
  float value = 0;
  if (bytes == 2 && ends("bfloat16"))
    value = BfloatToFloat(Value<uint16_t>(at));
  if (bytes == 2 && ends("_float16")) value = HalfToFloat(Value<uint16_t>(at));
  return value != value;
}

// One launch on the device and on the host.
class Launch {
 public:
  Launch(const SoftwareKernel& kernel, const Layout& layout,
         const Factors& factors, std::mt19937_64* random)
      : kernel_(kernel),
        layout_(layout),
        input_(BytesFor(kernel.input_bytes)),
        output_(BytesFor(kernel.output_bytes)),
        rows_(layout.rows.size() * sizeof(MoveRow)) {
    std::vector<char> drawn(input_.bytes());
    Draw(&drawn, kernel.input_bytes, random);
    std::copy(drawn.begin(), drawn.end(), input_.host());
    std::fill_n(output_.host(), output_.bytes(), '\x5a');
    arguments_.row_count = static_cast<int64_t>(layout.rows.size());
    arguments_.tile = layout.tile;
    arguments_.factor = factors.factor;
    arguments_.divisor = factors.divisor;
    for (const Row& row : layout.rows) arguments_.total += row.count;
  }

  int64_t total() const { return arguments_.total; }

  // Describes the first difference, if any.
  Status Run(DeviceSide* side, std::string* difference) {
    TF_HVD_RETURN_IF_ERROR(input_.Open(side));
    TF_HVD_RETURN_IF_ERROR(output_.Open(side));
    Lay(input_.device(), output_.device());
    TF_HVD_RETURN_IF_ERROR(rows_.Open(side));
    arguments_.rows = reinterpret_cast<const MoveRow*>(rows_.device());
    void* values[] = {&arguments_};
    const auto tiles = static_cast<unsigned>(
        (arguments_.total + arguments_.tile - 1) / arguments_.tile);
    TF_HVD_RETURN_IF_ERROR(side->device()->Launch(side->stream(), kernel_.name,
                                                  tiles, kThreads, values));
    std::string got(output_.bytes(), '\0');
    TF_HVD_RETURN_IF_ERROR(
        side->Download(output_.device(), &got[0], got.size()));
    Lay(input_.host(), output_.host());
    arguments_.rows = reinterpret_cast<const MoveRow*>(rows_.host());
    for (unsigned tile = 0; tile < tiles; ++tile) {
      for (int thread = 0; thread < kThreads; ++thread) {
        kernel_.tile(arguments_, tile, thread, kThreads);
      }
    }
    for (Mirror* mirror : {&input_, &output_, &rows_}) {
      side->Free(mirror->device());
    }
    *difference = Compare(got);
    return Status::Ok();
  }

 private:
  size_t BytesFor(size_t element) const {
    size_t bytes = 64;
    for (const Row& row : layout_.rows) bytes += Room(row, element);
    return bytes;
  }

  static size_t Room(const Row& row, size_t element) {
    return (static_cast<size_t>(row.count + 18) * element + 127) / 64 * 64;
  }

  // The rows of tensors at these addresses.
  void Lay(char* input, char* output) {
    auto* const rows = reinterpret_cast<MoveRow*>(rows_.host());
    int64_t end = 0;
    for (size_t i = 0; i < layout_.rows.size(); ++i) {
      const Row& row = layout_.rows[i];
      end += row.count;
      const auto in = static_cast<size_t>(row.in_offset) * kernel_.input_bytes;
      const auto out =
          static_cast<size_t>(row.out_offset) * kernel_.output_bytes;
      rows[i] = {row.zeros ? nullptr : input + in, output + out, end};
      input += Room(row, kernel_.input_bytes);
      output += Room(row, kernel_.output_bytes);
    }
  }

  // All memory of the outputs, including the gaps between rows.
  std::string Compare(const std::string& got) {
    const size_t element = kernel_.output_bytes;
    for (size_t at = 0; at + element <= got.size(); at += element) {
      const char* const expected = output_.host() + at;
      if (std::memcmp(&got[at], expected, element) == 0) continue;
      if (IsNan(kernel_.name, element, expected) &&
          IsNan(kernel_.name, element, &got[at])) {
        continue;
      }
      return std::string(kernel_.name) + " on " + layout_.name +
             " rows, times " + std::to_string(arguments_.factor) + " / " +
             std::to_string(arguments_.divisor) + ", differs at byte " +
             std::to_string(at);
    }
    return "";
  }

  const SoftwareKernel kernel_;
  const Layout& layout_;
  Mirror input_;
  Mirror output_;
  Mirror rows_;
  MoveArguments arguments_{};
};

// More than 2^31 bytes in one row, moved one by one.
Status CheckLarge(DeviceSide* side, std::string* said) {
  constexpr int64_t kCount = (int64_t{1} << 31) + 4099;
  constexpr size_t kPart = size_t{64} << 20;
  char* input = nullptr;
  char* output = nullptr;
  char* rows = nullptr;
  if (!side->Allocate(kCount + 1, &input).ok() ||
      !side->Allocate(kCount, &output).ok()) {
    *said = "no memory for a row of 2^31 elements";
    return Status::Ok();
  }
  TF_HVD_RETURN_IF_ERROR(side->Allocate(sizeof(MoveRow), &rows));
  const auto pattern = [](int64_t at, std::vector<char>* part) {
    std::mt19937 random(static_cast<uint32_t>(at >> 20));
    for (char& byte : *part) byte = static_cast<char>(random());
  };
  std::vector<char> part(kPart);
  for (int64_t at = 0; at < kCount; at += kPart) {
    pattern(at, &part);
    const auto bytes =
        static_cast<size_t>(std::min<int64_t>(kPart, kCount - at));
    TF_HVD_RETURN_IF_ERROR(side->Upload(input + 1 + at, part.data(), bytes));
  }
  const MoveRow row = {input + 1, output, kCount};
  TF_HVD_RETURN_IF_ERROR(
      side->Upload(rows, reinterpret_cast<const char*>(&row), sizeof(row)));
  MoveArguments arguments = {
      reinterpret_cast<const MoveRow*>(rows), 1, kCount, 32 * 1024, 1.0, 1.0};
  void* values[] = {&arguments};
  TF_HVD_RETURN_IF_ERROR(side->device()->Launch(
      side->stream(), "tf_hvd_copy_1",
      static_cast<unsigned>((kCount + arguments.tile - 1) / arguments.tile),
      kThreads, values));
  std::vector<char> got(kPart);
  for (int64_t at = 0; at < kCount; at += kPart) {
    pattern(at, &part);
    const auto bytes =
        static_cast<size_t>(std::min<int64_t>(kPart, kCount - at));
    TF_HVD_RETURN_IF_ERROR(side->Download(output + at, got.data(), bytes));
    if (!std::equal(got.begin(), got.begin() + static_cast<ptrdiff_t>(bytes),
                    part.begin())) {
      return Internal("a row of 2^31 elements differs after byte " +
                      std::to_string(at));
    }
  }
  *said = "and a row of 2^31 elements";
  return Status::Ok();
}

Status CheckAll(DeviceSide* side, bool large, std::string* said) {
  std::mt19937_64 random(11);
  const std::vector<Layout> layouts = Layouts(&random);
  int64_t launches = 0;
  int64_t elements = 0;
  for (const SoftwareKernel& kernel : SoftwareKernels()) {
    for (const Factors& factors : FactorsFor(kernel.name)) {
      for (const Layout& layout : layouts) {
        Launch launch(kernel, layout, factors, &random);
        std::string difference;
        TF_HVD_RETURN_IF_ERROR(
            launch.Run(side, &difference).WithContext(kernel.name));
        if (!difference.empty()) return Internal(difference);
        ++launches;
        elements += launch.total();
      }
    }
  }
  int sums = 0;
  TF_HVD_RETURN_IF_ERROR(CheckSums(side, &sums));
  std::string more;
  if (large) TF_HVD_RETURN_IF_ERROR(CheckLarge(side, &more));
  const size_t kernels = SoftwareKernels().size() + SoftwareSumsAll().size();
  *said = std::to_string(kernels) + " kernels, " +
          std::to_string(launches + sums) + " launches, " +
          std::to_string(elements) + " elements moved";
  if (!more.empty()) *said += "; " + more;
  return Status::Ok();
}

int Main(const ProgramOptions& options) {
  const GpuLibraries libraries = options.Open();
  if (options.NoGpu(libraries)) return kNoGpu;
  std::unique_ptr<DeviceSide> side;
  Status status =
      DeviceSide::Open(libraries.cuda, options.Number("device", 0), &side);
  std::string said;
  if (status.ok()) {
    status = CheckAll(side.get(), options.Number("large", 1) != 0, &said);
  }
  return Report(status, said);
}

}  // namespace
}  // namespace tf_hvd

int main(int argc, char** argv) {
  return tf_hvd::Main(tf_hvd::ProgramOptions(argc, argv));
}
