#include "runtime/transport/mpi/edge.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/transport/mpi_library/library.h"

namespace tf_hvd {

MpiEdge::MpiEdge(const MpiApi* api, MpiHandle comm, int tag, int peer,
                 OnError on_error)
    : api_(api),
      comm_(comm),
      tag_(tag),
      peer_(peer),
      on_error_(std::move(on_error)) {}

bool MpiEdge::Check(const char* call, int code) {
  if (code == 0) return true;
  if (!std::exchange(dead_, true)) on_error_(MpiResult(*api_, call, code));
  return false;
}

void MpiEdge::Start() {
  for (Fragment& fragment : in_) Post(&fragment);
}

void MpiEdge::Post(Fragment* fragment) {
  if (dead_) return;
  const int code = api_->irecv(api_->state, fragment->data.data(),
                               static_cast<int>(kFragmentBytes), peer_, tag_,
                               comm_, &fragment->request);
  fragment->posted = Check("MPI_Irecv", code);
}

size_t MpiEdge::Write(const char* data, size_t size) {
  size_t taken = 0;
  while (taken < size && !dead_) {
    Fragment& fragment = out_[filling_];
    if (fragment.posted) ReapSends();
    if (fragment.posted) break;
    const size_t piece =
        std::min(size - taken, kFragmentBytes - fragment.bytes);
    std::memcpy(fragment.data.data() + fragment.bytes, data + taken, piece);
    fragment.bytes += piece;
    taken += piece;
    if (fragment.bytes == kFragmentBytes) SendPending();
  }
  return taken;
}

void MpiEdge::Flush() {
  Fragment& fragment = out_[filling_];
  if (!fragment.posted && fragment.bytes > 0) SendPending();
  ReapSends();
}

void MpiEdge::SendPending() {
  if (dead_) return;
  Fragment& fragment = out_[filling_];
  const int code = api_->isend(api_->state, fragment.data.data(),
                               static_cast<int>(fragment.bytes), peer_, tag_,
                               comm_, &fragment.request);
  if (!Check("MPI_Isend", code)) return;
  fragment.posted = true;
  filling_ = (filling_ + 1) % kFragments;
}

void MpiEdge::ReapSends() {
  while (!dead_ && out_[oldest_send_].posted) {
    Fragment& fragment = out_[oldest_send_];
    int done = 0;
    const int code = api_->test(api_->state, &fragment.request, &done, nullptr);
    if (!Check("MPI_Test", code) || done == 0) return;
    fragment.posted = false;
    fragment.bytes = 0;
    oldest_send_ = (oldest_send_ + 1) % kFragments;
  }
}

bool MpiEdge::Arrived() {
  if (readable_) return true;
  Fragment& fragment = in_[oldest_receive_];
  if (dead_ || !fragment.posted) return false;
  int done = 0;
  int bytes = 0;
  const int code = api_->test(api_->state, &fragment.request, &done, &bytes);
  if (!Check("MPI_Test", code) || done == 0) return false;
  fragment.posted = false;
  fragment.bytes = static_cast<size_t>(bytes);
  taken_ = 0;
  readable_ = fragment.bytes > 0;
  heard_last_ = !readable_;
  return readable_;
}

size_t MpiEdge::Read(char* data, size_t size) {
  size_t given = 0;
  while (given < size && Arrived()) {
    Fragment& fragment = in_[oldest_receive_];
    const size_t piece = std::min(size - given, fragment.bytes - taken_);
    std::memcpy(data + given, fragment.data.data() + taken_, piece);
    given += piece;
    taken_ += piece;
    if (taken_ < fragment.bytes) break;
    readable_ = false;
    oldest_receive_ = (oldest_receive_ + 1) % kFragments;
    Post(&fragment);
  }
  return given;
}

// Discards bytes that the neighbour has sent and that are not read any more.
void MpiEdge::DropArrivals() {
  while (Arrived()) {
    Fragment& fragment = in_[oldest_receive_];
    readable_ = false;
    oldest_receive_ = (oldest_receive_ + 1) % kFragments;
    Post(&fragment);
  }
}

// Sends an empty fragment, after all others.
void MpiEdge::SendLast() {
  Flush();
  if (said_last_ || dead_ || out_[filling_].posted) return;
  said_last_ = true;
  SendPending();
  ReapSends();
}

bool MpiEdge::Stop(bool neighbour_too) {
  SendLast();
  if (!heard_last_ && !cancelled_) DropArrivals();
  if (dead_) return true;
  if (!said_last_ || out_[oldest_send_].posted) return false;
  if (!heard_last_ && neighbour_too) return false;
  return TakeBackReceives();
}

bool MpiEdge::TakeBackReceives() {
  const bool first = !std::exchange(cancelled_, true);
  bool over = true;
  for (Fragment& fragment : in_) {
    if (!fragment.posted) continue;
    if (first) api_->cancel(api_->state, &fragment.request);
    int done = 0;
    if (api_->test(api_->state, &fragment.request, &done, nullptr) != 0) {
      done = 1;
    }
    fragment.posted = done == 0;
    over = over && done != 0;
  }
  return over;
}

}  // namespace tf_hvd
