// FakeMpi: the table of MPI functions on a mailbox in this process, for code
// that sends and receives. Single-threaded.
#ifndef TF_HVD_TESTS_RUNTIME_TRANSPORT_FAKE_MPI_H_
#define TF_HVD_TESTS_RUNTIME_TRANSPORT_FAKE_MPI_H_

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/transport/mpi_library/api.h"

namespace tf_hvd {

class FakeMpi {
 public:
  static constexpr int kAnySource = -7;
  static constexpr int kError = 42;

  struct Message {
    int from;
    int to;
    int tag;
    std::string bytes;
  };

  // The table for rank `rank`.
  MpiApi Api(int rank) {
    auto& state = ranks_[rank];
    if (state == nullptr) state.reset(new Rank{this, rank});
    MpiApi api;
    api.state = state.get();
    api.any_source = kAnySource;
    api.isend = Isend;
    api.irecv = Irecv;
    api.test = Test;
    api.cancel = Cancel;
    api.error_string = ErrorString;
    return api;
  }

  // While true, sends stay incomplete.
  void HoldSends(bool hold) { hold_sends_ = hold; }
  // All later calls return kError.
  void Break() { broken_ = true; }
  // While true, tests return kError and free the request, as MPI does.
  void FailTests(bool fail) { fail_tests_ = fail; }

  const std::vector<Message>& sent() const { return sent_; }
  // Messages that no receive has matched.
  int unread() const { return static_cast<int>(mail_.size()); }
  // Receives that are posted and neither done nor cancelled.
  int open_receives() const { return open_receives_; }
  // Requests that were cancelled after MPI had freed them.
  int null_cancels() const { return null_cancels_; }

 private:
  struct Rank {
    FakeMpi* mpi;
    int rank;
  };
  struct Request {
    bool receives = false;
    bool cancelled = false;
    int peer = 0;
    int to = 0;
    int tag = 0;
    char* data = nullptr;
    size_t bytes = 0;
    bool done = false;
  };

  static FakeMpi& Of(void* state) { return *static_cast<Rank*>(state)->mpi; }
  static Request& In(MpiHandle* handle) {
    return *static_cast<Request*>(handle->pointer);
  }

  static int Isend(void* state, const void* data, int bytes, int peer, int tag,
                   MpiHandle, MpiHandle* handle) {
    FakeMpi& mpi = Of(state);
    if (mpi.broken_) return kError;
    const std::string text(static_cast<const char*>(data),
                           static_cast<size_t>(bytes));
    const Message message{static_cast<Rank*>(state)->rank, peer, tag, text};
    mpi.sent_.push_back(message);
    mpi.mail_.push_back(message);
    mpi.requests_.emplace_back();
    handle->pointer = &mpi.requests_.back();
    mpi.Match();
    return 0;
  }

  static int Irecv(void* state, void* data, int bytes, int peer, int tag,
                   MpiHandle, MpiHandle* handle) {
    FakeMpi& mpi = Of(state);
    if (mpi.broken_) return kError;
    mpi.requests_.emplace_back();
    Request& request = mpi.requests_.back();
    request.receives = true;
    request.peer = peer;
    request.to = static_cast<Rank*>(state)->rank;
    request.tag = tag;
    request.data = static_cast<char*>(data);
    request.bytes = static_cast<size_t>(bytes);
    handle->pointer = &request;
    ++mpi.open_receives_;
    mpi.Match();
    return 0;
  }

  static int Test(void* state, MpiHandle* handle, int* done, int* bytes) {
    FakeMpi& mpi = Of(state);
    if (mpi.broken_) return kError;
    Request& request = In(handle);
    if (mpi.fail_tests_) {
      handle->pointer = nullptr;
      if (request.receives) --mpi.open_receives_;
      request.done = true;
      return kError;
    }
    if (!request.receives) request.done = !mpi.hold_sends_;
    *done = request.done ? 1 : 0;
    if (bytes != nullptr) *bytes = static_cast<int>(request.bytes);
    if (request.done) handle->pointer = nullptr;
    return 0;
  }

  static int Cancel(void* state, MpiHandle* handle) {
    if (handle->pointer == nullptr) {
      ++Of(state).null_cancels_;
      return kError;
    }
    Request& request = In(handle);
    if (request.done) return 0;
    request.cancelled = true;
    request.done = true;
    --Of(state).open_receives_;
    return 0;
  }

  static int ErrorString(void*, int error, char* text) {
    std::snprintf(text, 512, "fake error %d", error);
    return 0;
  }

  // Receives match messages in the order of their posting.
  void Match() {
    for (Request& request : requests_) {
      if (!request.receives || request.done) continue;
      const auto found = std::find_if(
          mail_.begin(), mail_.end(), [&request](const Message& message) {
            return message.to == request.to && message.tag == request.tag &&
                   (request.peer == kAnySource || request.peer == message.from);
          });
      if (found == mail_.end()) continue;
      request.bytes = std::min(request.bytes, found->bytes.size());
      std::memcpy(request.data, found->bytes.data(), request.bytes);
      request.done = true;
      --open_receives_;
      mail_.erase(found);
    }
  }

  std::map<int, std::unique_ptr<Rank>> ranks_;
  std::list<Request> requests_;
  std::vector<Message> mail_;
  std::vector<Message> sent_;
  bool hold_sends_ = false;
  bool broken_ = false;
  bool fail_tests_ = false;
  int null_cancels_ = 0;
  int open_receives_ = 0;
};

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_RUNTIME_TRANSPORT_FAKE_MPI_H_
