#include "kernels/xla/compiled_call.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <string>

namespace tf_hvd {
namespace {

CompiledCall ACall() {
  CompiledCall call;
  call.set = 3;
  call.name = std::string("step/\"g\" \xc3\xa9\n") + '\0';
  call.error = "invalid argument";
  call.request.kind = OpKind::kAllgather;
  call.request.compiled = true;
  call.request.tensors.push_back({DType::kBfloat16, {4, 0, 7}, "w/kernel:0"});
  return call;
}

// It is stored in an XLA attribute and must not need the attribute's quotes or
// escapes.
TEST(CompiledCall, IsAlphanumericAndRoundTrips) {
  const CompiledCall call = ACall();
  const std::string text = EncodeCall(call);
  EXPECT_TRUE(std::all_of(text.begin(), text.end(), [](char letter) {
    return std::isalnum(static_cast<unsigned char>(letter)) != 0;
  })) << text;
  CompiledCall decoded;
  ASSERT_TRUE(DecodeCall(text, &decoded).ok());
  EXPECT_EQ(decoded.set, call.set);
  EXPECT_EQ(decoded.name, call.name);
  EXPECT_EQ(decoded.error, call.error);
  EXPECT_EQ(decoded.request, call.request);
}

TEST(CompiledCall, TruncatedAndInvalidCallsAreErrors) {
  const std::string text = EncodeCall(ACall());
  CompiledCall decoded;
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_FALSE(DecodeCall(text.substr(0, size), &decoded).ok()) << size;
  }
  EXPECT_FALSE(DecodeCall(std::string(text.size(), 'z'), &decoded).ok());
  EXPECT_FALSE(DecodeCall(text + "00", &decoded).ok());
}

}  // namespace
}  // namespace tf_hvd
