#include "runtime/transport/flight.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <thread>

namespace tf_hvd {
namespace {

using std::chrono::microseconds;

// The pump must run every 200 us; what happens between two looks at the clock
// (a block of a reduction, a sleep) fits into the rest.
constexpr microseconds kPumpEvery{50};
// A message between processes of a node takes less than this.
constexpr microseconds kSpin{20};
// After this the peer is busy with something else.
constexpr microseconds kYield{1000};
constexpr microseconds kSleep{30};

constexpr size_t kCopyBytes = 256 * 1024;

}  // namespace

Flight::Flight(Messenger* messenger, const Pump& pump, const Options& options)
    : messenger_(messenger),
      pump_(pump),
      options_(options),
      last_pump_(Clock::now()) {}

Flight::Lane& Flight::LaneAt(size_t lane) {
  if (lane >= lanes_.size()) lanes_.resize(lane + 1);
  return lanes_[lane];
}

Status Flight::Send(size_t lane, int peer, const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const size_t cut = std::min(bytes, options_.max_message_bytes);
    Messenger::Ticket ticket = 0;
    TF_HVD_RETURN_IF_ERROR(messenger_->Send(peer, next, cut, &ticket));
    if (ticket != 0) LaneAt(lane).push_back({ticket, peer});
    next += cut;
    bytes -= cut;
  }
  return Status::Ok();
}

Status Flight::Receive(size_t lane, int peer, void* data, size_t bytes) {
  char* next = static_cast<char*>(data);
  while (bytes > 0) {
    const size_t cut = std::min(bytes, options_.max_message_bytes);
    Messenger::Ticket ticket = 0;
    TF_HVD_RETURN_IF_ERROR(messenger_->Receive(peer, next, cut, &ticket));
    if (ticket != 0) LaneAt(lane).push_back({ticket, peer});
    next += cut;
    bytes -= cut;
  }
  return Status::Ok();
}

Status Flight::TestAll(Lane* lane, bool* progress) {
  for (size_t i = 0; i < lane->size();) {
    bool done = false;
    TF_HVD_RETURN_IF_ERROR(messenger_->Test((*lane)[i].ticket, &done));
    if (done) {
      (*lane)[i] = lane->back();
      lane->pop_back();
      *progress = true;
      NoteMoved();
    } else {
      ++i;
    }
  }
  return Status::Ok();
}

Status Flight::Wait(size_t lane_index) {
  Lane& lane = LaneAt(lane_index);
  Clock::time_point last_progress{};  // not asked for if all is there already
  while (!lane.empty()) {
    bool progress = false;
    TF_HVD_RETURN_IF_ERROR(TestAll(&lane, &progress));
    if (lane.empty()) break;
    NoteAwaited(lane.front().peer);
    const Clock::time_point now = Clock::now();
    if (progress || last_progress == Clock::time_point{}) last_progress = now;
    TF_HVD_RETURN_IF_ERROR(BreatheAt(now));
    Rest(now - last_progress);
  }
  NoteAwaited(-1);
  return Status::Ok();
}

void Flight::Rest(Clock::duration waited) const {
  if (waited > kYield) {
    std::this_thread::sleep_for(kSleep);
  } else if (options_.yield_at_once || waited > kSpin) {
    sched_yield();
  }
}

Status Flight::Breathe() {
  NoteMoved();
  return BreatheAt(Clock::now());
}

void Flight::NoteMoved() {
  if (options_.progress != nullptr) ++options_.progress->moved;
}

void Flight::NoteAwaited(int peer) {
  if (options_.progress != nullptr) options_.progress->awaited = peer;
}

Status Flight::BreatheAt(Clock::time_point now) {
  if (now - last_pump_ < kPumpEvery) return Status::Ok();
  Status status = pump_ ? pump_() : Status::Ok();
  last_pump_ = Clock::now();
  return status;
}

Status Flight::Copy(void* to, const void* from, size_t bytes) {
  if (to == from) return Status::Ok();
  for (size_t at = 0; at < bytes; at += kCopyBytes) {
    std::memcpy(static_cast<char*>(to) + at,
                static_cast<const char*>(from) + at,
                std::min(kCopyBytes, bytes - at));
    TF_HVD_RETURN_IF_ERROR(Breathe());
  }
  return Status::Ok();
}

bool Flight::Abandon() {
  for (Lane& lane : lanes_) {
    for (const Posted& posted : lane) {
      if (!messenger_->Abandon(posted.ticket)) certain_ = false;
    }
    lane.clear();
  }
  return certain_;
}

}  // namespace tf_hvd
