#include "runtime/transport/p2p/message_set.h"

#include <algorithm>

namespace tf_hvd {

MessageSet::MessageSet(PointToPoint* p2p, int tag, size_t max_message_bytes)
    : p2p_(p2p), tag_(tag), max_message_bytes_(max_message_bytes) {}

MessageSet::Lane& MessageSet::LaneAt(size_t lane) {
  if (lane >= lanes_.size()) lanes_.resize(lane + 1);
  return lanes_[lane];
}

Status MessageSet::Send(size_t lane, int peer, const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const size_t cut = std::min(bytes, max_message_bytes_);
    PointToPoint::MessageHandle handle = 0;
    TF_HVD_RETURN_IF_ERROR(p2p_->Send(peer, tag_, next, cut, &handle));
    if (handle != 0) LaneAt(lane).push_back({handle, peer});
    next += cut;
    bytes -= cut;
  }
  return Status::Ok();
}

Status MessageSet::Receive(size_t lane, int peer, void* data, size_t bytes) {
  char* next = static_cast<char*>(data);
  while (bytes > 0) {
    const size_t cut = std::min(bytes, max_message_bytes_);
    PointToPoint::MessageHandle handle = 0;
    TF_HVD_RETURN_IF_ERROR(p2p_->Receive(peer, tag_, next, cut, &handle));
    if (handle != 0) LaneAt(lane).push_back({handle, peer});
    next += cut;
    bytes -= cut;
  }
  return Status::Ok();
}

Status MessageSet::Test(size_t lane_index, bool* moved, int* awaited) {
  Lane& lane = LaneAt(lane_index);
  for (size_t i = 0; i < lane.size();) {
    bool done = false;
    TF_HVD_RETURN_IF_ERROR(p2p_->Test(lane[i].handle, &done));
    if (done) {
      lane[i] = lane.back();
      lane.pop_back();
      *moved = true;
    } else {
      ++i;
    }
  }
  *awaited = lane.empty() ? -1 : lane.front().peer;
  return Status::Ok();
}

bool MessageSet::Abandon() {
  for (Lane& lane : lanes_) {
    for (const Posted& posted : lane) {
      if (!p2p_->Abandon(posted.handle)) certain_ = false;
    }
    lane.clear();
  }
  return certain_;
}

}  // namespace tf_hvd
