#include "tests/runtime/protocol/sim_world.h"

#include <algorithm>
#include <set>

#include "runtime/agreement/tree.h"

namespace tf_hvd::protocol_test {
namespace {

constexpr int64_t kSettleNs = 500 * kMs;   // a smaller record may arrive
constexpr int64_t kStandInNs = 200 * kMs;  // the leader has not forwarded it
constexpr int64_t kLeaveNs = 5 * kSecond;
constexpr int64_t kAskNs = 2 * kSecond;  // a query takes at least this long

// Smallest first, without ties: ranks must agree on which they use.
bool Before(const AbortRecord& a, const AbortRecord& b) {
  return std::tie(a.error_class, a.rank, a.text) <
         std::tie(b.error_class, b.rank, b.text);
}

}  // namespace

SimWorld::SimWorld(uint64_t seed, const SimOptions& options)
    : options_(options), random_(seed) {
  BuildTree();
  neighbours_told_ = random_.Percent(50);
  tick_ns_ = random_.Pick<int64_t>({kSecond / 4, kSecond});
  if (random_.Percent(70)) {
    latency_ns_ = random_.Pick<int64_t>({kUs, 100 * kUs, 10 * kMs});
  }
  history_.executor_steps = random_.Percent(60);
  cells_.resize(topology_.nodes.size());
  ticking_.resize(static_cast<size_t>(topology_.size));
  for (int r = 0; r < topology_.size; ++r) {
    topology_.rank = r;
    const int slowness = random_.Percent(15) ? 200 : 1;
    ranks_.push_back(std::make_unique<SimRank>(
        this, topology_, history_.executor_steps, slowness));
  }
}

SimWorld::~SimWorld() { over_ = true; }

void SimWorld::BuildTree() {
  const int nodes = random_.Pick({1, 1, 2, 3, 4, 5});
  topology_.size = 0;
  std::vector<std::vector<int>> ranks(static_cast<size_t>(nodes));
  std::vector<std::string> hosts;
  for (size_t node = 0; node < ranks.size(); ++node) {
    for (int64_t left = random_.Between(1, 4); left > 0; --left) {
      ranks[node].push_back(topology_.size++);
      hosts.push_back("host" + std::to_string(node));
    }
  }
  topology_.nodes = std::move(ranks);
  topology_.hosts = std::move(hosts);
  topology_.fan_out = random_.Pick({1, 2, 8});
  for (int r = 0; r < topology_.size; ++r) {
    history_.members[kWorldSet].push_back(r);
    history_.parent[r] = PlaceOf(r, topology_.nodes, topology_.fan_out).parent;
  }
}

void SimWorld::Submit(int rank, Submission submission, const Request& request,
                      Done done) {
  const size_t index = history_.submissions.size();
  submission.rank = rank;
  submission.start_ns = events_.now();
  submission.orphan = !this->rank(rank)->alive();
  submission.kind = request.kind;
  submission.instance = NumberOf(submission);
  Entry entry;
  entry.set = submission.set;
  entry.name = submission.name;
  entry.request = request;
  if (!submission.local_error.empty()) {
    entry.local_error = InvalidArgument(submission.local_error);
  }
  entry.submitted_ns = events_.now();
  entry.step = submission.step;
  entry.keepalive = std::make_shared<int>(submission.instance);
  const bool orphan = submission.orphan;
  history_.submissions.push_back(std::move(submission));
  waiters_.push_back(std::move(done));
  if (orphan) return;
  entry.done = Completion([this, index](const Status& status, int32_t value) {
    Fired(index, status, value);
  });
  ++unfinished_;
  StartTicks();
  this->rank(rank)->Submit(std::move(entry));
}

// Ranks may have made different numbers of calls before they joined, so the
// count restarts with each join.
int SimWorld::NumberOf(const Submission& submission) {
  if (submission.late) return -1;
  int& joins = joins_[{submission.rank, submission.set}];
  const int number =
      instances_[{submission.rank, submission.set, joins, submission.name}]++;
  const int first = joins * 1000;
  if (submission.kind == OpKind::kJoin) ++joins;
  return first + number;
}

void SimWorld::Fired(size_t index, const Status& status, int32_t value) {
  if (over_) return;
  Submission& submission = history_.submissions[index];
  if (!history_.Alive(submission.rank)) return;
  --unfinished_;
  submission.status = status;
  submission.value = value;
  submission.end_ns = events_.now();
  if (++submission.fired > 1) history_.Fail("completed twice");
  const Submission copy = submission;  // `done` may submit again
  if (const Done done = std::exchange(waiters_[index], nullptr)) done(copy);
}

// While any request waits, each rank checks its limits several times a second.
void SimWorld::StartTicks() {
  for (int r = 0; r < size(); ++r) {
    if (ticking_[static_cast<size_t>(r)]) continue;
    ticking_[static_cast<size_t>(r)] = true;
    events_.After(random_.Between(1, tick_ns_), [this, r] { TickRank(r); });
  }
}

void SimWorld::TickRank(int rank) {
  ticking_[static_cast<size_t>(rank)] = unfinished_ > 0;
  if (unfinished_ == 0) return;
  this->rank(rank)->Tick();
  events_.After(tick_ns_, [this, rank] { TickRank(rank); });
}

void SimWorld::Run(int64_t limit_ns) {
  while (history_.failure.empty() && events_.RunNext(limit_ns)) {
  }
}

int64_t SimWorld::Latency(int from, int to) {
  int64_t base = latency_ns_;
  if (base == 0) {
    const auto [it, is_new] = edge_latency_ns_.try_emplace({from, to}, 0);
    if (is_new) {
      it->second = random_.Pick<int64_t>({kUs, 30 * kUs, kMs, 10 * kMs});
    }
    base = it->second;
  }
  return base * random_.Pick({1, 10, 10, 30}) / 10 + random_.Below(100);
}

void SimWorld::Carry(int from, int to, std::string message) {
  const TreePlace& place = rank(from)->controller().sets().place();
  if (to != place.parent &&
      std::count(place.children.begin(), place.children.end(), to) == 0) {
    return history_.Fail("sent to a rank that is not a neighbour");
  }
  if (!options_.separate_streams) {
    return CarryOn({from, to, 0}, std::move(message));
  }
  Message decoded;
  if (!DecodeMessage(message, &decoded).ok()) {
    return history_.Fail("malformed message");
  }
  if (decoded.kind != MessageKind::kResponses) {
    return CarryOn({from, to, 0}, std::move(message));
  }
  SplitBatch(from, to, std::move(decoded));
}

// However many ranks ask and are asked, the cost for a rank depends only on the
// number of its neighbours: an edge carries one question at a time, and one
// answer for each query.
void SimWorld::Sends(int from, int to, std::string_view bytes) {
  const auto kind = static_cast<MessageKind>(bytes[4]);
  if (kind != MessageKind::kAsk && kind != MessageKind::kQuery &&
      kind != MessageKind::kAnswer) {
    return;
  }
  Message message;
  if (!DecodeMessage(bytes, &message).ok()) {
    return history_.Fail("malformed message");
  }
  const std::string subject = std::to_string(message.set) + "/" + message.name;
  if (kind == MessageKind::kQuery) {
    unanswered_.insert({from, to, subject, message.query});
  } else if (kind == MessageKind::kAnswer &&
             unanswered_.erase({to, from, subject, message.query}) == 0) {
    history_.Fail("more than one answer to a query on an edge");
  } else if (kind == MessageKind::kAsk) {
    int64_t& last_ns =
        last_ask_ns_.try_emplace({from, subject}, -kAskNs).first->second;
    if (events_.now() - last_ns < kAskNs) {
      history_.Fail("the same question twice in a moment on an edge");
    }
    last_ns = events_.now();
  }
}

void SimWorld::SplitBatch(int from, int to, Message message) {
  std::map<int32_t, Message> by_set;
  for (Response& entry : message.batch) {
    Message& part = by_set[entry.key.first];
    part.kind = MessageKind::kResponses;
    part.batch.push_back(std::move(entry));
  }
  for (const auto& [set, part] : by_set) {
    CarryOn({from, to, set}, EncodeMessage(part));
  }
}

void SimWorld::CarryOn(const std::tuple<int, int, int32_t>& stream,
                       std::string message) {
  const int from = std::get<0>(stream);
  const int to = std::get<1>(stream);
  int64_t& end_ns = stream_end_ns_[stream];
  end_ns = std::max(end_ns, events_.now() + Latency(from, to));
  events_.At(end_ns, [this, from, to, message = std::move(message)] {
    rank(to)->Deliver(from, message);
  });
}

void SimWorld::Executes(int rank, const OrderKey& key, const Response& run) {
  history_.executed[rank].push_back(key);
  const auto [it, is_new] = history_.order.try_emplace(key);
  Ordered& ordered = it->second;
  if (is_new) {
    ordered.name = run.key.second;
    ordered.error = run.error;
  } else if (ordered.name != run.key.second || ordered.error != run.error) {
    history_.Fail("the orders of set " + std::to_string(key.first) +
                  " differ: '" + ordered.name + "' and '" + run.key.second +
                  "'");
  }
  ordered.ranks.insert(rank);
}

// A collective call: it completes on no rank before every member has entered
// it.
void SimWorld::Meet(int rank, const OrderKey& key, const Response& run) {
  Meeting& meeting = meetings_[key];
  meeting.ranks.push_back(rank);
  if (run.own.has_value()) {
    const int instance = *static_cast<const int*>(run.own->keepalive.get());
    if (meeting.instance >= 0 && meeting.instance != instance) {
      history_.Fail("different instances of '" + run.key.second + "' met");
    }
    if (meeting.instance >= 0 && meeting.step != run.own->step) {
      history_.Fail("different steps of '" + run.key.second + "' met");
    }
    meeting.instance = instance;
    meeting.step = run.own->step;
  }
  if (meeting.ranks.size() < run.ranks->size()) return;
  const int64_t takes_ns = random_.Pick<int64_t>({kUs, 100 * kUs, 50 * kMs});
  for (const int member : *run.ranks) {
    events_.After(takes_ns + random_.Below(takes_ns / 5), [this, member, key] {
      this->rank(member)->MeetingEnded(key);
    });
  }
}

void SimWorld::SetAdded(int32_t set, const std::vector<int>& ranks) {
  const auto [it, is_new] = history_.members.try_emplace(set, ranks);
  if (!is_new && it->second != ranks) {
    history_.Fail("process set " + std::to_string(set) + " was added twice");
  }
}

void SimWorld::Reported(const std::string& text, bool fatal) {
  history_.reports.push_back({events_.now(), fatal, text});
}

void SimWorld::Kill(int rank) {
  if (!history_.Alive(rank)) return;
  for (const Submission& one : history_.submissions) {
    if (one.rank == rank && !one.orphan && one.fired == 0) --unfinished_;
  }
  history_.dead.insert(rank);
  history_.last_death_ns = events_.now();
  this->rank(rank)->Die();
  const std::string text = "rank " + std::to_string(rank) + " died";
  events_.After(random_.Below(kSecond),
                [this, rank, text] { Detect(rank, text); });
}

// Its node's other ranks find its lock free. If there are none, MPI may report
// the death to its neighbours in the tree.
void SimWorld::Detect(int rank, const std::string& text) {
  const AbortRecord request{AbortRecord::kDied, rank, text};
  const auto node = static_cast<size_t>(topology_.NodeOf(rank));
  for (const int other : topology_.nodes[node]) {
    if (history_.Alive(other)) return RaiseAbort(other, request);
  }
  if (!neighbours_told_) {
    history_.unseen_death = true;
    return;
  }
  const TreePlace place = PlaceOf(topology_.nodes[node].front(),
                                  topology_.nodes, topology_.fan_out);
  std::vector<int> neighbours = place.children;
  if (place.parent >= 0) neighbours.push_back(place.parent);
  for (const int other : neighbours) {
    if (history_.Alive(other)) RaiseAbort(other, request);
  }
}

void SimWorld::Stop(int rank) {
  if (!history_.Alive(rank)) return;
  for (const Submission& one : history_.submissions) {
    if (one.rank == rank && !one.orphan && one.fired == 0) --unfinished_;
  }
  history_.stopped.insert(rank);
  this->rank(rank)->Die();
}

void SimWorld::Leave(int rank, const std::string& reason, bool through) {
  if (!history_.Alive(rank)) return;
  this->rank(rank)->Leave(reason, through);
}

void SimWorld::AwaitClose(int rank) {
  if (history_.leave_ns < 0) history_.leave_ns = events_.now();
  events_.After(kLeaveNs, [this, rank] {
    if (!this->rank(rank)->alive() || this->rank(rank)->ended()) return;
    RaiseAbort(rank, {AbortRecord::kStalled, rank,
                      "rank " + std::to_string(rank) + " left unanswered"});
  });
}

void SimWorld::RaiseAbort(int rank, const AbortRecord& request) {
  if (history_.abort_ns < 0) history_.abort_ns = events_.now();
  Spread(static_cast<size_t>(topology_.NodeOf(rank)), request);
}

void SimWorld::Spread(size_t node, const AbortRecord& request) {
  Cell& cell = cells_[node];
  if (cell.written && !Before(request, cell.request)) return;
  const bool is_first = !std::exchange(cell.written, true);
  cell.request = request;
  const std::vector<int>& ranks = topology_.nodes[node];
  const auto live = std::find_if(ranks.begin(), ranks.end(),
                                 [this](int r) { return history_.Alive(r); });
  if (live == ranks.end()) return;
  if (is_first) {
    events_.After(kSettleNs, [this, node] {
      for (const int r : topology_.nodes[node]) {
        rank(r)->AbortWith(cells_[node].request.text);
      }
    });
  }
  const TreePlace place =
      PlaceOf(ranks.front(), topology_.nodes, topology_.fan_out);
  const size_t count = topology_.nodes.size();
  std::set<size_t> targets = {(node + 1) % count, (node + count - 1) % count};
  for (const int child : place.children) {
    targets.insert(static_cast<size_t>(topology_.NodeOf(child)));
  }
  if (place.parent >= 0) {
    targets.insert(static_cast<size_t>(topology_.NodeOf(place.parent)));
  }
  targets.erase(node);
  const int64_t wait_ns = live == ranks.begin() ? 0 : kStandInNs;
  for (const size_t target : targets) {
    events_.After(wait_ns + kMs + latency_ns_,
                  [this, target, request] { Spread(target, request); });
  }
}

}  // namespace tf_hvd::protocol_test
