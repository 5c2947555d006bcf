#include "runtime/transport/liveness/abort_flood.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "runtime/agreement/tree.h"

namespace tf_hvd {

std::vector<int> FloodTargets(const Topology& topology) {
  const auto nodes = topology.nodes.size();
  const auto own = static_cast<size_t>(topology.NodeOf(topology.rank));
  const int leader = topology.nodes[own].front();
  std::set<int> targets;
  targets.insert(topology.nodes[(own + 1) % nodes].front());
  targets.insert(topology.nodes[(own + nodes - 1) % nodes].front());
  const TreePlace place = PlaceOf(leader, topology.nodes, topology.fan_out);
  if (place.parent >= 0) targets.insert(place.parent);
  for (const int child : place.children) {
    if (topology.NodeOf(child) != static_cast<int>(own)) targets.insert(child);
  }
  targets.erase(leader);
  return {targets.begin(), targets.end()};
}

AbortFlood::AbortFlood(const MpiApi* api, MpiHandle comm, int tag,
                       std::vector<int> targets)
    : api_(api), comm_(comm), tag_(tag), targets_(std::move(targets)) {}

void AbortFlood::Listen() {
  if (stopping_) return;
  listening_ = api_->irecv(api_->state, &arriving_, sizeof(arriving_),
                           api_->any_source, tag_, comm_, &receive_) == 0;
}

void AbortFlood::Send(const AbortRecord& record) {
  for (const int target : targets_) {
    Sending sending{MpiHandle{nullptr}, std::make_unique<Message>()};
    Message& message = *sending.message;
    message.error_class = record.error_class;
    message.rank = record.rank;
    std::memcpy(message.text, record.text.data(),
                std::min(record.text.size(), kAbortTextBytes - 1));
    // A target that cannot be reached gets the record from its other
    // neighbours.
    if (api_->isend(api_->state, &message, sizeof(message), target, tag_, comm_,
                    &sending.request) == 0) {
      sends_.push_back(std::move(sending));
    }
  }
}

std::optional<AbortRecord> AbortFlood::Receive() {
  for (size_t i = 0; i < sends_.size();) {
    int done = 0;
    const int code =
        api_->test(api_->state, &sends_[i].request, &done, nullptr);
    if (code == 0 && done != 0) {
      sends_.erase(sends_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  if (!listening_) return std::nullopt;
  int done = 0;
  int bytes = 0;
  if (api_->test(api_->state, &receive_, &done, &bytes) != 0) {
    listening_ = false;
    return std::nullopt;
  }
  if (done == 0) return std::nullopt;
  listening_ = false;
  if (bytes != static_cast<int>(sizeof(arriving_))) return std::nullopt;
  arriving_.text[kAbortTextBytes - 1] = '\0';
  AbortRecord record{arriving_.error_class, arriving_.rank, arriving_.text};
  Listen();
  return record;
}

bool AbortFlood::Stop() {
  if (!std::exchange(stopping_, true) && listening_) {
    api_->cancel(api_->state, &receive_);
  }
  if (!listening_) return true;
  int done = 0;
  if (api_->test(api_->state, &receive_, &done, nullptr) != 0) done = 1;
  listening_ = done == 0;
  return !listening_;
}

}  // namespace tf_hvd
