#include "runtime/request/request.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "runtime/request/mismatch.h"
#include "tests/runtime/one_tensor.h"

namespace tf_hvd {
namespace {

Request RandomRecord(std::mt19937* random) {
  const auto below = [random](int limit) {
    return static_cast<int>((*random)() % static_cast<unsigned>(limit));
  };
  Request request;
  request.kind = static_cast<OpKind>(below(9));
  request.device = static_cast<DeviceKind>(below(2));
  request.compiled = below(2) == 1;
  request.reduce_op = static_cast<ReduceOp>(below(6));
  request.prescale = below(100) / 8.0 - 3;
  request.postscale = 1.0 / (1 + below(5));
  request.root = below(10) - 1;
  request.removed_set = below(5);
  request.compression = std::string(static_cast<size_t>(below(9)), 'c');
  for (int i = below(4); i > 0; --i) request.ranks.push_back(below(1 << 20));
  for (int t = below(4); t > 0; --t) {
    TensorSpec tensor;
    tensor.dtype = static_cast<DType>(below(kDTypeCount));
    for (int d = below(5); d > 0; --d) {
      tensor.shape.push_back(below(1000) - 1);
    }
    tensor.name = std::string(static_cast<size_t>(below(9)), 'n');
    request.tensors.push_back(std::move(tensor));
  }
  return request;
}

void ExpectEqual(const Request& a, const Request& b) {
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.device, b.device);
  EXPECT_EQ(a.compiled, b.compiled);
  EXPECT_EQ(a.reduce_op, b.reduce_op);
  EXPECT_EQ(a.prescale, b.prescale);
  EXPECT_EQ(a.postscale, b.postscale);
  EXPECT_EQ(a.root, b.root);
  EXPECT_EQ(a.removed_set, b.removed_set);
  EXPECT_EQ(a.compression, b.compression);
  EXPECT_EQ(a.ranks, b.ranks);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    EXPECT_EQ(a.tensors[i].dtype, b.tensors[i].dtype);
    EXPECT_EQ(a.tensors[i].shape, b.tensors[i].shape);
    EXPECT_EQ(a.tensors[i].name, b.tensors[i].name);
  }
}

TEST(Request, RoundTrip) {
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    const Request request = RandomRecord(&random);
    Request decoded;
    ASSERT_TRUE(DecodeRequest(EncodeRequest(request), &decoded).ok());
    ExpectEqual(request, decoded);
  }
}

// Equal requests share an encoding, so the existing wire form must be the one
// that a new encoding would produce.
TEST(Request, EqualExactlyIfTheWireFormsAre) {
  std::mt19937 random(4);
  std::vector<Request> requests;
  for (int i = 0; i < 60; ++i) {
    Request request = RandomRecord(&random);
    requests.push_back(request);
    // Differs in at most one field.
    const Request other = RandomRecord(&random);
    switch (i % 10) {
      case 0:
        request.kind = other.kind;
        break;
      case 1:
        request.device = other.device;
        break;
      case 2:
        request.reduce_op = other.reduce_op;
        break;
      case 3:
        request.prescale = i < 30 ? -request.prescale : std::nan("");
        break;
      case 4:
        request.postscale = i < 30 ? 0.0 : -0.0;
        break;
      case 5:
        request.root = other.root;
        break;
      case 6:
        request.removed_set = other.removed_set;
        break;
      case 7:
        request.compression = other.compression;
        break;
      case 8:
        request.ranks = other.ranks;
        break;
      default:
        request.tensors = other.tensors;
        break;
    }
    requests.push_back(std::move(request));
  }
  for (const Request& a : requests) {
    for (const Request& b : requests) {
      const bool same = EncodeRequest(a) == EncodeRequest(b);
      EXPECT_EQ(a == b, same);
      EXPECT_EQ(a != b, !same);
      EXPECT_EQ(SharedRequest(a) == SharedRequest(b), same);
    }
  }
}

TEST(Request, RequestOfACompiledStepDiffers) {
  std::mt19937 random(5);
  const Request request = RandomRecord(&random);
  Request other = request;
  other.compiled = !other.compiled;
  EXPECT_NE(request, other);
  EXPECT_NE(EncodeRequest(request), EncodeRequest(other));
}

TEST(Request, TruncatedOrLongerIsAnError) {
  std::mt19937 random(2);
  for (int i = 0; i < 100; ++i) {
    const std::string bytes = EncodeRequest(RandomRecord(&random));
    Request decoded;
    for (size_t size = 0; size < bytes.size(); ++size) {
      // A separate buffer, so that a read past its end is detected.
      const std::string cut(bytes, 0, size);
      EXPECT_FALSE(DecodeRequest(cut, &decoded).ok());
    }
    EXPECT_EQ(DecodeRequest(bytes + "x", &decoded).message(),
              "bug in tf_hvd: a request is malformed");
  }
}

TEST(Request, RandomBytesAreHarmless) {
  std::mt19937 random(3);
  for (int i = 0; i < 5000; ++i) {
    std::string bytes(random() % 80, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    SharedRequest decoded;
    if (!SharedRequest::Decode(bytes, &decoded).ok()) continue;
    EXPECT_EQ(decoded.bytes(), bytes);
    const std::string text = DescribeMismatch("x", 0, *decoded, 1, *decoded);
    EXPECT_NE(text.find("'x'"), std::string::npos);
  }
}

TEST(Request, TotalBytes) {
  Request request = OneTensor(DType::kFloat32, {3, 4});
  EXPECT_EQ(TotalBytes(request), 48);
  request.tensors.push_back({DType::kInt64, {}});
  EXPECT_EQ(TotalBytes(request), 56);
  EXPECT_EQ(TotalBytes(OneTensor(DType::kFloat64, {-1, 5})), 40);
  EXPECT_EQ(TotalBytes(OneTensor(DType::kFloat64, {7, 0})), 0);
  EXPECT_EQ(TotalBytes(Request()), 0);
}

}  // namespace
}  // namespace tf_hvd
