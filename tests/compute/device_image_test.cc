#include "compute/device_image.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>

namespace tf_hvd {
namespace {

// "9.0", "ptx 9.0"; "none" for null.
std::string Name(const DeviceCode* code) {
  if (code == nullptr) return "none";
  return (code->is_ptx ? "ptx " : "") + std::to_string(code->major) + "." +
         std::to_string(code->minor);
}

// In arbitrary order: the choice does not depend on it.
constexpr DeviceCode kSome[] = {
    {9, 0, false, nullptr, 0}, {8, 6, false, nullptr, 0},
    {8, 0, true, nullptr, 0},  {8, 0, false, nullptr, 0},
    {10, 3, true, nullptr, 0}, {12, 0, false, nullptr, 0},
    {8, 3, true, nullptr, 0},
};

std::string Choose(int major, int minor) {
  return Name(ChooseCode(kSome, sizeof(kSome) / sizeof(*kSome), major, minor));
}

TEST(ChooseCode, PrefersTheDevicesMachineCode) {
  EXPECT_EQ(Choose(8, 0), "8.0");  // rather than PTX of the same version
  EXPECT_EQ(Choose(8, 6), "8.6");
  EXPECT_EQ(Choose(9, 0), "9.0");
  EXPECT_EQ(Choose(12, 0), "12.0");
}

TEST(ChooseCode, FallsBackToTheNextLowerMinorNumber) {
  EXPECT_EQ(Choose(8, 5), "8.0");  // rather than PTX of a later version
  EXPECT_EQ(Choose(8, 9), "8.6");
  EXPECT_EQ(Choose(9, 2), "9.0");
  EXPECT_EQ(Choose(12, 1), "12.0");
}

TEST(ChooseCode, OtherwiseTheNewestPtx) {
  EXPECT_EQ(Choose(10, 0), "ptx 8.3");
  EXPECT_EQ(Choose(10, 3), "ptx 10.3");
  EXPECT_EQ(Choose(11, 0), "ptx 10.3");
  EXPECT_EQ(Choose(13, 0), "ptx 10.3");
}

TEST(ChooseCode, NothingForOlderDevices) {
  EXPECT_EQ(Choose(7, 5), "none");
  EXPECT_EQ(Choose(3, 9), "none");
}

TEST(ChooseCode, NullWithoutCodes) {
  EXPECT_EQ(ChooseCode(kSome, 0, 9, 0), nullptr);
}

TEST(DeviceCodes, CoverTheArchitecturesOfTheWheel) {
  size_t count = 0;
  const DeviceCode* const codes = DeviceCodes(&count);
  if (count == 0) GTEST_SKIP() << "a build without NVRTC";
  std::string names;
  for (size_t i = 0; i < count; ++i) names += Name(&codes[i]) + "; ";
  EXPECT_EQ(names,
            "6.0; 7.0; 7.5; 8.0; 8.6; 8.9; 9.0; 10.0; 10.3; 12.0; ptx 9.0; ");
}

TEST(DeviceCodes, CanBeLoadedByTheDriver) {
  constexpr char kElf[] = "\177ELF";
  size_t count = 0;
  const DeviceCode* const codes = DeviceCodes(&count);
  for (size_t i = 0; i < count; ++i) {
    const DeviceCode& code = codes[i];
    SCOPED_TRACE(Name(&code));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(code.image) % 8, 0u);
    const std::string text(static_cast<const char*>(code.image), code.bytes);
    if (code.is_ptx) {
      EXPECT_NE(text.find("\n.version "), std::string::npos);
      EXPECT_NE(text.find("\n.target sm_90\n"), std::string::npos);
      // The driver takes PTX without a length.
      EXPECT_EQ(text.back(), '\0');
    } else {
      EXPECT_EQ(text.substr(0, 4), kElf);
    }
    // By name, as cuModuleGetFunction looks for them.
    EXPECT_NE(text.find("tf_hvd_copy_1"), std::string::npos);
    EXPECT_NE(text.find("tf_hvd_cast_bfloat16_float32"), std::string::npos);
  }
}

TEST(DeviceImage, IsTheImageOfTheChosenCode) {
  size_t count = 0;
  const DeviceCode* const codes = DeviceCodes(&count);
  for (size_t i = 0; i < count; ++i) {
    if (codes[i].is_ptx) continue;
    EXPECT_EQ(DeviceImage(codes[i].major, codes[i].minor), codes[i].image);
  }
  EXPECT_EQ(DeviceImage(5, 2), nullptr);
  EXPECT_EQ(DeviceImage(13, 0) != nullptr, count > 0);
}

}  // namespace
}  // namespace tf_hvd
