// Little-endian reading and writing of the wire forms (agreement.md, section
// 3). A Reader never reads past its end: after the first short read it has
// failed permanently, and all later reads return zeros.
#ifndef TF_HVD_BASE_WIRE_H_
#define TF_HVD_BASE_WIRE_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace tf_hvd {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "the wire form is little-endian, so the machine must be too");

class Writer {
 public:
  template <typename T>
  void Put(T value) {
    static_assert(std::is_arithmetic_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void PutText(std::string_view text) {
    Put(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
  }
  // Appends the bytes of another Writer.
  void PutBytes(std::string_view bytes) { bytes_.append(bytes); }
  // Overwrites the value at `offset`.
  void PatchU32(size_t offset, uint32_t value) {
    std::memcpy(&bytes_[offset], &value, sizeof(value));
  }
  size_t size() const { return bytes_.size(); }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T Get() {
    static_assert(std::is_arithmetic_v<T>);
    T value{};
    const std::string_view raw = Raw(sizeof(T));
    if (ok_) std::memcpy(&value, raw.data(), sizeof(T));
    return value;
  }
  std::string_view GetText() { return Raw(Get<uint32_t>()); }

  // Marks the input as invalid.
  void Fail() { ok_ = false; }

  bool ok() const { return ok_; }
  // True when everything was read and nothing was missing.
  bool AtEnd() const { return ok_ && bytes_.empty(); }

 private:
  std::string_view Raw(size_t size) {
    ok_ = ok_ && size <= bytes_.size();
    if (!ok_) return {};
    const std::string_view raw = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return raw;
  }

  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace tf_hvd

#endif  // TF_HVD_BASE_WIRE_H_
