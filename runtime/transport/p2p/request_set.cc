#include "runtime/transport/p2p/request_set.h"

#include <algorithm>

namespace tf_hvd {

RequestSet::RequestSet(PointToPoint* p2p, int tag, size_t max_message_bytes)
    : p2p_(p2p), tag_(tag), max_message_bytes_(max_message_bytes) {}

RequestSet::Lane& RequestSet::LaneAt(size_t lane) {
  if (lane >= lanes_.size()) lanes_.resize(lane + 1);
  return lanes_[lane];
}

Status RequestSet::Send(size_t lane, int peer, const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const size_t cut = std::min(bytes, max_message_bytes_);
    PointToPoint::Request request = 0;
    TF_HVD_RETURN_IF_ERROR(p2p_->Send(peer, tag_, next, cut, &request));
    if (request != 0) LaneAt(lane).push_back({request, peer});
    next += cut;
    bytes -= cut;
  }
  return Status::Ok();
}

Status RequestSet::Receive(size_t lane, int peer, void* data, size_t bytes) {
  char* next = static_cast<char*>(data);
  while (bytes > 0) {
    const size_t cut = std::min(bytes, max_message_bytes_);
    PointToPoint::Request request = 0;
    TF_HVD_RETURN_IF_ERROR(p2p_->Receive(peer, tag_, next, cut, &request));
    if (request != 0) LaneAt(lane).push_back({request, peer});
    next += cut;
    bytes -= cut;
  }
  return Status::Ok();
}

Status RequestSet::Test(size_t lane_index, bool* moved, int* awaited) {
  Lane& lane = LaneAt(lane_index);
  for (size_t i = 0; i < lane.size();) {
    bool done = false;
    TF_HVD_RETURN_IF_ERROR(p2p_->Test(lane[i].request, &done));
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

bool RequestSet::Abandon() {
  for (Lane& lane : lanes_) {
    for (const Posted& posted : lane) {
      if (!p2p_->Abandon(posted.request)) certain_ = false;
    }
    lane.clear();
  }
  return certain_;
}

}  // namespace tf_hvd
