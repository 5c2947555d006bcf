#include "tests/gpu/socket_world.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "runtime/contract/doorbell.h"
#include "runtime/contract/point_to_point.h"
#include "runtime/transport/routing/data_backends.h"

namespace tf_hvd {
namespace {

// The contents of a frame; values from 0 are messages with that tag.
constexpr int32_t kEdgeBytes = -1;
constexpr int32_t kAbort = -2;
constexpr int32_t kFarewell = -3;

struct FrameHead {
  int32_t kind = 0;
  uint32_t error_class = 0;  // of kAbort, and its rank
  int32_t rank = 0;
  uint64_t bytes = 0;
};

// The frames from and to one rank. Not locked.
class Peer {
 public:
  explicit Peer(int socket) : socket_(socket) {}
  ~Peer() { close(socket_); }

  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  void Put(const FrameHead& head, const char* bytes) {
    out_.append(reinterpret_cast<const char*>(&head), sizeof(head));
    out_.append(bytes, head.bytes);
  }

  // Sends and receives as much as possible without waiting.
  void Move() {
    while (!gone_ && sent_ < out_.size()) {
      const ssize_t count =
          send(socket_, out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL);
      if (Stopped(count)) break;
      sent_ += static_cast<size_t>(count);
    }
    if (sent_ == out_.size()) {
      out_.clear();
      sent_ = 0;
    }
    char buffer[64 * 1024];
    while (!gone_) {
      const ssize_t count = recv(socket_, buffer, sizeof(buffer), 0);
      if (count == 0) gone_ = true;
      if (count == 0 || Stopped(count)) break;
      in_.append(buffer, static_cast<size_t>(count));
    }
  }

  // The next completely received frame.
  bool Next(FrameHead* head, std::string* bytes) {
    if (in_.size() < sizeof(*head)) return false;
    std::memcpy(head, in_.data(), sizeof(*head));
    if (in_.size() < sizeof(*head) + head->bytes) return false;
    *bytes = in_.substr(sizeof(*head), head->bytes);
    in_.erase(0, sizeof(*head) + head->bytes);
    return true;
  }

  bool idle() const { return gone_ || out_.empty(); }
  bool gone() const { return gone_; }

 private:
  bool Stopped(ssize_t count) {
    if (count >= 0) return false;
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
      gone_ = true;
    }
    return true;
  }

  const int socket_;
  std::string out_;
  size_t sent_ = 0;
  std::string in_;
  bool gone_ = false;
};

// All sockets of a rank. Any thread.
class Sockets {
 public:
  Sockets(const std::vector<int>& sockets, int rank) : rank_(rank) {
    for (size_t i = 0; i < sockets.size(); ++i) {
      if (sockets[i] >= 0) {
        peers_[static_cast<int>(i)] = std::make_unique<Peer>(sockets[i]);
      }
    }
  }

  void Send(int to, int32_t kind, const char* bytes, size_t count) {
    const std::lock_guard<std::mutex> lock(mutex_);
    peers_[to]->Put({kind, 0, 0, count}, bytes);
    MoveAll();
  }

  size_t ReadEdge(int from, char* data, size_t size) {
    const std::lock_guard<std::mutex> lock(mutex_);
    MoveAll();
    std::string& bytes = edges_[from];
    const size_t count = std::min(size, bytes.size());
    std::memcpy(data, bytes.data(), count);
    bytes.erase(0, count);
    return count;
  }

  // The oldest received message of a tag, if any.
  bool Receive(int from, int32_t tag, std::string* bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    MoveAll();
    auto& waiting = messages_[{from, tag}];
    if (waiting.empty()) return false;
    *bytes = std::move(waiting.front());
    waiting.pop_front();
    return true;
  }

  void Raise(const AbortRecord& record) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!Keep(record)) return;
    for (const auto& [rank, peer] : peers_) {
      peer->Put({kAbort, record.error_class, record.rank, record.text.size()},
                record.text.data());
    }
    MoveAll();
  }

  std::optional<AbortRecord> Poll() {
    const std::lock_guard<std::mutex> lock(mutex_);
    MoveAll();
    for (const auto& [rank, peer] : peers_) {
      if (!peer->gone() || farewells_[rank]) continue;
      static_cast<void>(Keep({AbortRecord::kDied, rank,
                              "rank " + std::to_string(rank) + " died"}));
    }
    return record_;
  }

  // Reports that this rank's end is regular, and sends the remaining data.
  void Leave() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [rank, peer] : peers_) peer->Put({kFarewell, 0, 0, 0}, "");
    for (int looks = 0; looks < 2000; ++looks) {
      MoveAll();
      const bool idle =
          std::all_of(peers_.begin(), peers_.end(),
                      [](const auto& one) { return one.second->idle(); });
      if (idle) return;
      usleep(1000);
    }
  }

 private:
  bool Keep(const AbortRecord& record) {
    if (record_.has_value() && !record.Before(*record_)) return false;
    record_ = record;
    return true;
  }

  void MoveAll() {
    FrameHead head;
    std::string bytes;
    for (const auto& [rank, peer] : peers_) {
      peer->Move();
      while (peer->Next(&head, &bytes)) Take(rank, head, bytes);
    }
  }

  void Take(int from, const FrameHead& head, const std::string& bytes) {
    switch (head.kind) {
      case kEdgeBytes:
        edges_[from] += bytes;
        break;
      case kAbort:
        static_cast<void>(Keep({head.error_class, head.rank, bytes}));
        break;
      case kFarewell:
        farewells_[from] = true;
        break;
      default:
        messages_[{from, head.kind}].push_back(bytes);
    }
  }

  const int rank_;
  std::mutex mutex_;
  // Guarded by mutex_:
  std::map<int, std::unique_ptr<Peer>> peers_;
  std::map<int, std::string> edges_;
  std::map<std::pair<int, int32_t>, std::deque<std::string>> messages_;
  std::map<int, bool> farewells_;
  std::optional<AbortRecord> record_;
};

class SocketEdge final : public Edge {
 public:
  SocketEdge(Sockets* sockets, int peer) : sockets_(sockets), peer_(peer) {}

  size_t Write(const char* data, size_t size) override {
    sockets_->Send(peer_, kEdgeBytes, data, size);
    return size;
  }
  void Flush() override {}
  size_t Read(char* data, size_t size) override {
    return sockets_->ReadEdge(peer_, data, size);
  }
  bool Readable() const override { return false; }
  bool polled() const override { return true; }

 private:
  Sockets* const sockets_;
  const int peer_;
};

// Messages are copied when they are sent: a send completes immediately.
class SocketPointToPoint final : public PointToPoint {
 public:
  explicit SocketPointToPoint(Sockets* sockets) : sockets_(sockets) {}

  Status Send(int peer, int tag, const void* data, size_t bytes,
              MessageHandle* handle) override {
    sockets_->Send(peer, tag, static_cast<const char*>(data), bytes);
    *handle = 0;
    return Status::Ok();
  }
  Status Receive(int peer, int tag, void* data, size_t bytes,
                 MessageHandle* handle) override {
    *handle = ++last_;
    receipts_[last_] = {peer, tag, data, bytes};
    order_[{peer, tag}].push_back(last_);
    return Status::Ok();
  }
  Status Test(MessageHandle handle, bool* done) override {
    *done = true;
    const auto found = receipts_.find(handle);
    if (found == receipts_.end()) return Status::Ok();
    const Receipt receipt = found->second;
    auto& order = order_[{receipt.peer, receipt.tag}];
    std::string bytes;
    while (!order.empty() &&
           sockets_->Receive(receipt.peer, receipt.tag, &bytes)) {
      const Receipt& first = receipts_[order.front()];
      if (bytes.size() != first.bytes) {
        return Internal("a message and its receive differ in size");
      }
      std::memcpy(first.data, bytes.data(), bytes.size());
      receipts_.erase(order.front());
      order.pop_front();
    }
    *done = receipts_.count(handle) == 0;
    return Status::Ok();
  }
  bool Abandon(MessageHandle handle) override {
    const auto found = receipts_.find(handle);
    if (found == receipts_.end()) return true;
    auto& order = order_[{found->second.peer, found->second.tag}];
    order.erase(std::remove(order.begin(), order.end(), handle), order.end());
    receipts_.erase(found);
    return true;
  }

 private:
  struct Receipt {
    int peer;
    int tag;
    void* data;
    size_t bytes;
  };

  Sockets* const sockets_;
  MessageHandle last_ = 0;
  std::map<MessageHandle, Receipt> receipts_;
  std::map<std::pair<int, int>, std::deque<MessageHandle>> order_;
};

class SocketWorld final : public World {
 public:
  SocketWorld(SocketMesh* mesh, int rank, const GpuAccess& gpu)
      : sockets_(mesh->Take(rank), rank), p2p_(&sockets_) {
    topology_.rank = rank;
    topology_.size = mesh->ranks();
    topology_.nodes = {*topology_.Everyone()};
    topology_.hosts =
        std::vector<std::string>(static_cast<size_t>(topology_.size), "here");
    for (int other = 0; other < topology_.size; ++other) {
      if (other != rank) edges_.try_emplace(other, &sockets_, other);
    }
    data_.emplace(topology_, std::nullopt, nullptr, &p2p_, &bell_, gpu);
  }

  const Topology& topology() const override { return topology_; }
  Edge* edge(int neighbour) override {
    const auto found = edges_.find(neighbour);
    return found == edges_.end() ? nullptr : &found->second;
  }
  Doorbell* doorbell() override { return &bell_; }
  std::vector<Backend*> backends() override { return data_->all(); }
  GpuDevices* gpus() override { return data_->gpus(); }
  std::string DescribeData() const override { return data_->Describe(); }
  void RaiseAbort(const AbortRecord& record) override {
    sockets_.Raise(record);
    bell_.Ring();
  }
  std::optional<AbortRecord> PollAbort() override { return sockets_.Poll(); }
  void Finalize(bool clean) override {
    data_->Close(clean);
    if (clean) sockets_.Leave();
  }

 private:
  Topology topology_;
  Sockets sockets_;
  SocketPointToPoint p2p_;
  Doorbell bell_;
  std::optional<DataBackends> data_;
  std::map<int, SocketEdge> edges_;
};

}  // namespace

SocketMesh::SocketMesh(int ranks)
    : ranks_(ranks),
      ends_(static_cast<size_t>(ranks),
            std::vector<int>(static_cast<size_t>(ranks), -1)) {
  for (size_t a = 0; a < ends_.size(); ++a) {
    for (size_t b = a + 1; b < ends_.size(); ++b) {
      int pair[2];
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0,
                     pair) != 0) {
        std::perror("socketpair");
        std::exit(1);
      }
      ends_[a][b] = pair[0];
      ends_[b][a] = pair[1];
    }
  }
}

std::vector<int> SocketMesh::Take(int rank) {
  std::vector<int> mine;
  for (size_t of = 0; of < ends_.size(); ++of) {
    if (static_cast<int>(of) == rank) {
      mine = ends_[of];
      continue;
    }
    for (const int end : ends_[of]) {
      if (end >= 0) close(end);
    }
  }
  ends_.clear();
  return mine;
}

std::unique_ptr<World> MakeSocketWorld(SocketMesh* mesh, int rank,
                                       const GpuAccess& gpu) {
  return std::make_unique<SocketWorld>(mesh, rank, gpu);
}

}  // namespace tf_hvd
