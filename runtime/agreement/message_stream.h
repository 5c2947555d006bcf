// MessageStream: whole messages over the byte stream of an Edge. What does not
// fit into the edge waits here, so that sending never blocks.
//
// Holder of the progress lock only, but for Readable().
#ifndef TF_HVD_RUNTIME_AGREEMENT_MESSAGE_STREAM_H_
#define TF_HVD_RUNTIME_AGREEMENT_MESSAGE_STREAM_H_

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "runtime/transport/edge.h"

namespace tf_hvd {

class MessageStream {
 public:
  // `edge` outlives the stream.
  MessageStream(int peer, Edge* edge) : peer_(peer), edge_(edge) {}

  int peer() const { return peer_; }

  void Send(std::string_view message) { out_.append(message); }

  // Hands what waits to the edge. True if anything moved.
  bool Push();

  // Takes what has arrived and gives each whole message to `receive`, which
  // may Send. True if anything moved.
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

#endif  // TF_HVD_RUNTIME_AGREEMENT_MESSAGE_STREAM_H_
