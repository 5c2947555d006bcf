// MpiEdge: an edge of the tree between the leaders of two nodes. The stream is
// cut into fragments so short that MPI sends each at once, without asking the
// receiver. All members but Readable call MPI: the holder of the progress lock
// only.
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
  static constexpr size_t kFragments = 8;  // under way, each direction

  // Told once when MPI fails; the edge is dead from then on.
  using OnError = std::function<void(const Status& status)>;

  // `api` must outlive this. Start must be called before anything else.
  MpiEdge(const MpiApi* api, MpiHandle comm, int tag, int peer,
          OnError on_error);

  // Posts the receives.
  void Start();

  size_t Write(const char* data, size_t size) override;
  void Flush() override;
  size_t Read(char* data, size_t size) override;
  bool Readable() const override { return readable_; }
  bool polled() const override { return true; }

  // Before MPI_Finalize: sends what is left, tells the neighbour that nothing
  // follows, and takes the receives back; with `neighbour_too` not before the
  // neighbour has told the same, so that no message is left unread, which
  // libraries complain of. Call until true; false for ever if the neighbour is
  // gone.
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
  // Looks whether the oldest receive is done; true if its bytes are there.
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
  size_t filling_ = 0;      // the fragment that takes the next byte
  size_t oldest_send_ = 0;  // the first that may still be under way

  Fragments in_;
  size_t oldest_receive_ = 0;
  size_t taken_ = 0;  // of the oldest, once it has arrived
  std::atomic<bool> readable_{false};
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_MPI_EDGE_H_
