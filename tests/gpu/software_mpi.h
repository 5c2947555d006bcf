// SoftwareMpi: messages of a CUDA-aware MPI, for ranks of one process, on a
// SoftwareGpu. It reads and writes device memory on its own streams, late, and
// these wait for no other stream. It detects memory that is not ready, and
// messages of a different size than expected.
//
// One thread.
#ifndef TF_HVD_TESTS_GPU_SOFTWARE_MPI_H_
#define TF_HVD_TESTS_GPU_SOFTWARE_MPI_H_

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/transport/mpi_library/api.h"
#include "tests/gpu/software_gpu.h"

namespace tf_hvd {

class SoftwareMpi {
 public:
  SoftwareMpi(SoftwareGpu* gpu, int ranks) : gpu_(gpu) {
    for (int rank = 0; rank < ranks; ++rank) {
      ranks_.push_back(std::make_unique<Rank>());
      ranks_.back()->mpi = this;
      ranks_.back()->rank = rank;
      ranks_.back()->stream = gpu->NewStream(rank);
    }
  }

  // The table for rank `rank`.
  const MpiApi* Api(int rank) {
    Rank& of = *ranks_[static_cast<size_t>(rank)];
    of.api.state = &of;
    of.api.isend = Isend;
    of.api.irecv = Irecv;
    of.api.test = Test;
    of.api.error_string = ErrorString;
    return &of.api;
  }

  size_t calls() const { return calls_; }
  // Messages that have not been received.
  size_t left() const { return board_.size(); }

 private:
  using Bytes = std::vector<char>;

  // The data that a call waits for and sends; see Test.
  struct Request {
    std::string posts;  // key of this rank's message; empty: none
    std::shared_ptr<Bytes> given;
    size_t gives = 0;            // bytes
    CUevent_st* read = nullptr;  // `given` is complete
    std::string awaits;          // key of the message to receive; empty: none
    void* to = nullptr;
    size_t gets = 0;  // bytes
    CUevent_st* written = nullptr;
  };
  struct Rank {
    SoftwareMpi* mpi = nullptr;
    int rank = 0;
    CudaStream stream = nullptr;
    MpiApi api;
    std::map<int, size_t> sent;
    std::map<int, size_t> received;
    std::list<Request> requests;
  };

  static Rank& Of(void* state) { return *static_cast<Rank*>(state); }

  CUevent_st* Record(const Rank& of) {
    CUevent_st* event = nullptr;
    SoftwareGpu::Cuda()->event_create(&event, kCudaEventDisableTiming);
    SoftwareGpu::Cuda()->event_record(event, of.stream);
    return event;
  }

  static bool Fired(CUevent_st** event) {
    if (*event == nullptr) return true;
    if (SoftwareGpu::Cuda()->event_query(*event) != kCudaSuccess) return false;
    SoftwareGpu::Cuda()->event_destroy(*event);
    *event = nullptr;
    return true;
  }

  void Give(Rank* of, Request* request, const std::string& key,
            const void* data, size_t bytes) {
    request->posts = key;
    request->given = gpu_->Read(of->stream, data, bytes);
    request->gives = bytes;
    request->read = Record(*of);
  }

  int Post(Rank* of, Request request, MpiHandle* handle) {
    ++calls_;
    handle->pointer = &of->requests.emplace_back(std::move(request));
    return 0;
  }

  static std::string MailKey(int from, int to, size_t number) {
    return std::to_string(from) + ">" + std::to_string(to) + "/" +
           std::to_string(number);
  }

  static int Isend(void* state, const void* data, int bytes, int peer, int,
                   MpiHandle, MpiHandle* handle) {
    Rank& of = Of(state);
    Request request;
    of.mpi->Give(&of, &request, MailKey(of.rank, peer, of.sent[peer]++), data,
                 static_cast<size_t>(bytes));
    return of.mpi->Post(&of, std::move(request), handle);
  }

  static int Irecv(void* state, void* data, int bytes, int peer, int, MpiHandle,
                   MpiHandle* handle) {
    Rank& of = Of(state);
    Request request;
    request.awaits = MailKey(peer, of.rank, of.received[peer]++);
    request.to = data;
    request.gets = static_cast<size_t>(bytes);
    return of.mpi->Post(&of, std::move(request), handle);
  }

  // All requests of a rank progress, as in MPI.
  static int Test(void* state, MpiHandle* handle, int* done, int*) {
    Rank& of = Of(state);
    auto* const asked = static_cast<Request*>(handle->pointer);
    *done = 0;
    for (auto one = of.requests.begin(); one != of.requests.end(); ++one) {
      if (!of.mpi->MoveOn(&of, &*one) || &*one != asked) continue;
      of.requests.erase(one);
      *done = 1;
      break;
    }
    return 0;
  }

  // Returns true if it has ended.
  bool MoveOn(Rank* of, Request* request) {
    if (!Fired(&request->read)) return false;
    if (request->given != nullptr) {
      Bytes& posted = board_[request->posts];
      posted = *std::exchange(request->given, nullptr);
      posted.resize(request->gives);  // nothing was read because of a fault
    }
    if (!request->awaits.empty()) {
      const auto found = board_.find(request->awaits);
      if (found == board_.end()) return false;
      if (found->second.size() != request->gets) {
        const std::lock_guard<std::mutex> lock(gpu_->mutex());
        gpu_->Fault("a message has a different size than expected");
        found->second.resize(request->gets);
      }
      gpu_->Write(of->stream, request->to, std::move(found->second));
      board_.erase(found);
      request->awaits.clear();
      request->written = Record(*of);
    }
    return Fired(&request->written);
  }

  static int ErrorString(void*, int, char* text) {
    text[0] = '\0';
    return 0;
  }

  SoftwareGpu* const gpu_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::map<std::string, Bytes> board_;
  size_t calls_ = 0;
};

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_SOFTWARE_MPI_H_
