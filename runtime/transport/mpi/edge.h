// MpiEdge: an edge of the tree between the leaders of two nodes. The stream is
// divided into fragments that are short enough for MPI to send each
// immediately, without asking the receiver. All members except Readable call
// MPI, so they are for the holder of the progress lock only.
#ifndef TF_HVD_RUNTIME_TRANSPORT_MPI_EDGE_H_
#define TF_HVD_RUNTIME_TRANSPORT_MPI_EDGE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>

#include "base/status.h"
#include "runtime/contract/edge.h"
#include "runtime/transport/mpi_library/api.h"

namespace tf_hvd {

class MpiEdge : public Edge {
 public:
  static constexpr size_t kFragmentBytes = 2048;
  static constexpr size_t kFragments = 8;  // in progress, each direction

  // Called once when MPI fails; the edge is unusable from then on.
  using OnError = std::function<void(const Status& status)>;

  // `api` must outlive this object. Start must be called first.
  MpiEdge(const MpiApi* api, MpiHandle comm, int tag, int peer,
          OnError on_error);

  // Posts the receives.
  void Start();

  size_t Write(const char* data, size_t size) override;
  void Flush() override;
  size_t Read(char* data, size_t size) override;
  bool Readable() const override { return readable_; }
  bool polled() const override { return true; }

  // Before MPI_Finalize: sends the remaining bytes, announces the end to the
  // neighbour, and cancels the receives. With `neighbour_too`, waits for the
  // neighbour's announcement first, so that no message is left unread, which
  // some libraries report. Call until true; permanently false if the neighbour
  // has died.
  bool Stop(bool neighbour_too);

 private:
  struct Fragment {
    MpiHandle request{nullptr};
    bool posted = false;
    size_t bytes = 0;
    std::array<char, kFragmentBytes> data;
  };
  using Fragments = std::array<Fragment, kFragments>;

  bool Check(const char* call, int code);
  void Post(Fragment* fragment);
  void SendPending();
  void ReapSends();
  // Tests the oldest receive; true if its bytes have arrived.
  bool Arrived();
  void SendLast();
  void DropArrivals();
  bool TakeBackReceives();

  const MpiApi* const api_;
  const MpiHandle comm_;
  const int tag_;
  const int peer_;
  const OnError on_error_;
  bool dead_ = false;
  bool said_last_ = false;
  bool heard_last_ = false;
  bool cancelled_ = false;

  Fragments out_;
  size_t filling_ = 0;      // the fragment for the next byte
  size_t oldest_send_ = 0;  // the first that may still be in progress

  Fragments in_;
  size_t oldest_receive_ = 0;
  size_t taken_ = 0;  // of the oldest fragment, once it has arrived
  std::atomic<bool> readable_{false};
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_MPI_EDGE_H_
