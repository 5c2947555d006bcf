#include "compute/device_image.h"

namespace tf_hvd {

const DeviceCode* ChooseCode(const DeviceCode* codes, size_t count, int major,
                             int minor) {
  const DeviceCode* best = nullptr;
  for (size_t i = 0; i < count; ++i) {
    const DeviceCode& code = codes[i];
    const bool not_newer =
        code.major < major || (code.major == major && code.minor <= minor);
    if (!not_newer || (!code.is_ptx && code.major != major)) continue;
    const bool better =
        best == nullptr || (best->is_ptx && !code.is_ptx) ||
        (best->is_ptx == code.is_ptx &&
         (code.major > best->major ||
          (code.major == best->major && code.minor > best->minor)));
    if (better) best = &code;
  }
  return best;
}

const void* DeviceImage(int major, int minor) {
  size_t count = 0;
  const DeviceCode* const codes = DeviceCodes(&count);
  const DeviceCode* const code = ChooseCode(codes, count, major, minor);
  return code == nullptr ? nullptr : code->image;
}

}  // namespace tf_hvd
