// Messages between neighbours in the tree and their wire form (agreement.md,
// section 3). Pure.
//
// Header: u32 bytes of the whole message, u8 kind, u8 zero, u16 flags.
//
// MessageStream: whole messages over the byte stream of an Edge. Bytes that do
// not fit into the edge wait here, so that sending never blocks. Called only by
// the holder of the progress lock, except Readable().
#ifndef TF_HVD_RUNTIME_AGREEMENT_MESSAGE_H_
#define TF_HVD_RUNTIME_AGREEMENT_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "runtime/agreement/clock_offset.h"
#include "runtime/agreement/decision.h"
#include "runtime/agreement/response.h"
#include "runtime/agreement/stall_answer.h"
#include "runtime/contract/edge.h"

namespace tf_hvd {

inline constexpr size_t kHeaderBytes = 8;

enum class MessageKind : uint8_t {
  kVote = 1,       // up
  kResponses = 2,  // down
  kLeave = 3,      // up
  kAsk = 4,        // up
  kQuery = 5,      // down
  kAnswer = 6,     // up
  kAskClock = 7,   // up
  kClock = 8,      // down
};

// One type for all kinds; `kind` determines which members are used.
struct Message {
  MessageKind kind = MessageKind::kVote;
  int32_t set = kWorldSet;      // vote, ask, query, answer
  uint32_t slot = kNoSlot;      // vote
  std::string name;             // vote without slot, ask, query, answer
  Vote vote;                    // vote; without `first.request` if by slot
  std::vector<Response> batch;  // responses
  int32_t rank = 0;             // leave
  std::string text;             // leave
  bool through = false;         // leave; see Controller::Leave
  bool early = false;           // ask, query: no warning is due
  uint32_t query = 0;  // query, answer: the number that the coordinator gave it
  int64_t wait_ns = 0;  // query: how long to wait for answers from below
  StallAnswer answer;   // answer
  ClockReading clock;   // ask clock, clock
};

std::string EncodeMessage(const Message& message);

// Encodes one batch for several neighbours, sharing work. A response is encoded
// once, even for several children. A message with the same responses as an
// earlier one is reused.
class BatchEncoder {
 public:
  // `batch` outlives the encoder.
  explicit BatchEncoder(const std::vector<Response>& batch)
      : batch_(batch), encoded_(batch.size()) {}

  // The message with the responses at `places`, which ascend. Valid as long as
  // the encoder exists.
  std::string_view Encode(const std::vector<size_t>& places);

  // For tests: how many responses have been encoded.
  size_t responses_encoded() const { return responses_encoded_; }

 private:
  const std::vector<Response>& batch_;
  std::vector<std::string> encoded_;  // by place; empty: not encoded yet
  std::map<std::vector<size_t>, std::string> messages_;
  size_t responses_encoded_ = 0;
};

// `bytes` is one whole message, header included.
Status DecodeMessage(std::string_view bytes, Message* message);

// The length in the header at the start of `bytes`; 0 if there are fewer than
// kHeaderBytes. An invalid length counts as kHeaderBytes, so that DecodeMessage
// rejects it and the stream does not wait indefinitely.
size_t MessageBytes(std::string_view bytes);

class MessageStream {
 public:
  // `edge` outlives the stream.
  MessageStream(int peer, Edge* edge) : peer_(peer), edge_(edge) {}

  int peer() const { return peer_; }

  void Send(std::string_view message) { out_.append(message); }

  // Moves waiting bytes to the edge. True if any bytes moved.
  bool Push();

  // Reads the received bytes and passes each whole message to `receive`, which
  // may call Send. True if any bytes moved.
  bool Pull(const std::function<void(std::string_view)>& receive);

  bool HasOutput() const { return out_begin_ < out_.size(); }

  // Any thread.
  bool Readable() const { return edge_->Readable(); }
  bool polled() const { return edge_->polled(); }

 private:
  const int peer_;
  Edge* const edge_;
  std::string out_;
  size_t out_begin_ = 0;  // bytes of out_ that the edge has taken
  std::string in_;        // the beginning of a message, or less than a header
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_AGREEMENT_MESSAGE_H_
