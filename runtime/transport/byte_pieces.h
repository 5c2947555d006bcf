// Runs of bytes that are moved piece by piece.
#ifndef TF_HVD_RUNTIME_TRANSPORT_BYTE_PIECES_H_
#define TF_HVD_RUNTIME_TRANSPORT_BYTE_PIECES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tf_hvd {

inline uint64_t PiecesOf(int64_t bytes, size_t piece_bytes) {
  return (static_cast<uint64_t>(bytes) + piece_bytes - 1) / piece_bytes;
}

// The bytes of the piece; 0 if there are no more.
inline size_t BytesIn(uint64_t piece, int64_t bytes, size_t piece_bytes) {
  const size_t begin = piece * piece_bytes;
  const auto end = static_cast<size_t>(bytes);
  return begin >= end ? 0 : std::min(piece_bytes, end - begin);
}

// Slices that several ranks work on begin at cache lines, counted in bytes as
// in elements.
constexpr size_t kSliceAlign = 64;

// Where, of so many bytes or elements, the slice of the owner at `place`
// begins.
inline size_t CutAt(size_t count, size_t place, size_t owners) {
  if (place >= owners) return count;
  return count * place / owners / kSliceAlign * kSliceAlign;
}

// `to` and `from` are null only where `bytes` is 0.
inline void CopyAt(void* to, size_t to_at, const void* from, size_t from_at,
                   size_t bytes) {
  if (bytes == 0) return;
  char* const target = static_cast<char*>(to) + to_at;
  const char* const source = static_cast<const char*>(from) + from_at;
  if (target != source) std::memmove(target, source, bytes);
}

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_BYTE_PIECES_H_
