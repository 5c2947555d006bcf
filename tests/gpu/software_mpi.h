// SoftwareMpi: a CUDA-aware MPI for ranks of one process, on a SoftwareGpu. It
// reads and writes the memory of devices on streams of its own, late, which
// wait for no other; it really reduces. Who gives it memory that is not ready,
// or makes other calls than the rest, is found.
//
// One thread.
#ifndef TF_HVD_TESTS_GPU_SOFTWARE_MPI_H_
#define TF_HVD_TESTS_GPU_SOFTWARE_MPI_H_

#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/buffer_ops.h"
#include "runtime/transport/mpi_api.h"
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

  // The table as rank `rank` sees it.
  const MpiApi* Api(int rank) {
    Rank& of = *ranks_[static_cast<size_t>(rank)];
    of.api.state = &of;
    of.api.iallreduce = Iallreduce;
    of.api.ireduce_scatter_block = IreduceScatterBlock;
    of.api.iallgather = Iallgather;
    of.api.ibroadcast = Ibroadcast;
    of.api.isend = Isend;
    of.api.irecv = Irecv;
    of.api.test = Test;
    of.api.error_string = ErrorString;
    return &of.api;
  }

  size_t calls() const { return calls_; }

 private:
  using Bytes = std::vector<char>;
  using Inputs = std::vector<const Bytes*>;

  // What a call waits for, and does; see Test.
  struct Request {
    std::string posts;  // key of what this rank gives; empty: nothing
    std::shared_ptr<Bytes> given;
    size_t gives = 0;  // bytes
    CUevent_st* read = nullptr;       // `given` is there
    std::vector<std::string> awaits;  // keys
    std::function<Bytes(const Inputs& inputs)> result;
    void* to = nullptr;
    CUevent_st* written = nullptr;
  };
  struct Rank {
    SoftwareMpi* mpi = nullptr;
    int rank = 0;
    CudaStream stream = nullptr;
    MpiApi api;
    size_t collectives = 0;
    std::map<int, size_t> sent;
    std::map<int, size_t> received;
    std::list<Request> requests;
  };

  static Rank& Of(void* state) { return *static_cast<Rank*>(state); }

  // The key of what rank `rank` gives to the call that `of` makes now.
  static std::string KeyOf(const Rank& of, size_t rank) {
    return std::to_string(of.collectives) + "/" + std::to_string(rank);
  }

  // All ranks must say the same of their calls in the same place.
  void Agree(Rank* of, const std::string& what) {
    std::string& said = said_[of->collectives];
    if (said.empty()) said = what;
    if (said != what) {
      const std::lock_guard<std::mutex> lock(gpu_->mutex());
      gpu_->Fault("MPI's calls are made in different order: " + said + " and " +
                  what);
    }
  }

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

  // Of a collective: every rank gives `bytes` of its `data`.
  int Collective(Rank* of, const std::string& what, const void* data,
                 size_t bytes, void* to,
                 std::function<Bytes(const Inputs&)> result,
                 MpiHandle* handle) {
    Agree(of, what + " " + std::to_string(bytes));
    Request request;
    Give(of, &request, KeyOf(*of, static_cast<size_t>(of->rank)), data, bytes);
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      request.awaits.push_back(KeyOf(*of, rank));
    }
    request.result = std::move(result);
    request.to = to;
    ++of->collectives;
    return Post(of, std::move(request), handle);
  }

  static DType TypeOf(MpiNumber number) {
    constexpr DType kTypes[] = {
        DType::kUint8,   DType::kInt8,      DType::kUint16,
        DType::kInt16,   DType::kUint32,    DType::kInt32,
        DType::kUint64,  DType::kInt64,     DType::kFloat32,
        DType::kFloat64, DType::kComplex64, DType::kComplex128};
    return kTypes[static_cast<int>(number)];
  }

  // Elements [begin, begin + count) of all inputs.
  static Bytes Reduced(const Inputs& inputs, size_t begin, int count,
                       MpiNumber number, MpiReduction op) {
    constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                                 ReduceOp::kProduct};
    ReduceOptions options;
    options.dtype = TypeOf(number);
    options.op = kOps[static_cast<int>(op)];
    const size_t element = SizeOf(options.dtype);
    std::vector<const void*> parts;
    for (const Bytes* const input : inputs) {
      parts.push_back(input->data() + begin * element);
    }
    Bytes result(static_cast<size_t>(count) * element);
    ReduceInputs(options, parts, count, result.data());
    return result;
  }

  static int Iallreduce(void* state, const void* input, void* output, int count,
                        MpiNumber type, MpiReduction op, MpiHandle,
                        MpiHandle* request) {
    Rank& of = Of(state);
    return of.mpi->Collective(
        &of, "allreduce", input == nullptr ? output : input,
        static_cast<size_t>(count) * SizeOf(TypeOf(type)), output,
        [=](const Inputs& inputs) {
          return Reduced(inputs, 0, count, type, op);
        },
        request);
  }

  static int IreduceScatterBlock(void* state, void* data, int count,
                                 MpiNumber type, MpiReduction op, MpiHandle,
                                 MpiHandle* request) {
    Rank& of = Of(state);
    const size_t ranks = of.mpi->ranks_.size();
    const auto each = static_cast<size_t>(count);
    const size_t begin = each * static_cast<size_t>(of.rank);
    return of.mpi->Collective(
        &of, "reducescatter", data, ranks * each * SizeOf(TypeOf(type)), data,
        [=](const Inputs& inputs) {
          return Reduced(inputs, begin, count, type, op);
        },
        request);
  }

  static int Iallgather(void* state, const void* mine, void* all, int bytes,
                        MpiHandle, MpiHandle* request) {
    Rank& of = Of(state);
    const auto each = static_cast<size_t>(bytes);
    const char* const place =
        static_cast<char*>(all) + each * static_cast<size_t>(of.rank);
    return of.mpi->Collective(
        &of, "allgather", mine == nullptr ? place : mine, each, all,
        [](const Inputs& inputs) {
          Bytes result;
          for (const Bytes* const input : inputs) {
            result.insert(result.end(), input->begin(), input->end());
          }
          return result;
        },
        request);
  }

  static int Ibroadcast(void* state, void* data, int bytes, int root, MpiHandle,
                        MpiHandle* handle) {
    Rank& of = Of(state);
    const auto size = static_cast<size_t>(bytes);
    of.mpi->Agree(&of, "broadcast " + std::to_string(bytes) + " from " +
                           std::to_string(root));
    const std::string key = KeyOf(of, static_cast<size_t>(root));
    Request request;
    if (of.rank == root) {
      of.mpi->Give(&of, &request, key, data, size);
    } else {
      request.awaits = {key};
      request.result = [](const Inputs& inputs) { return *inputs[0]; };
      request.to = data;
    }
    ++of.collectives;
    return of.mpi->Post(&of, std::move(request), handle);
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
    request.awaits = {MailKey(peer, of.rank, of.received[peer]++)};
    request.result = [mpi = of.mpi, bytes](const Inputs& inputs) {
      if (inputs[0]->size() != static_cast<size_t>(bytes)) {
        const std::lock_guard<std::mutex> lock(mpi->gpu_->mutex());
        mpi->gpu_->Fault("a message is of another size than was waited for");
      }
      return *inputs[0];
    };
    request.to = data;
    return of.mpi->Post(&of, std::move(request), handle);
  }

  // All of a rank's requests move on, as MPI's do.
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

  // True if it has ended.
  bool MoveOn(Rank* of, Request* request) {
    if (!Fired(&request->read)) return false;
    if (request->given != nullptr) {
      Bytes& posted = board_[request->posts];
      posted = *std::exchange(request->given, nullptr);
      posted.resize(request->gives);  // nothing was read: a fault
    }
    if (request->result != nullptr) {
      Inputs inputs;
      for (const std::string& key : request->awaits) {
        const auto found = board_.find(key);
        if (found == board_.end()) return false;
        inputs.push_back(&found->second);
      }
      gpu_->Write(of->stream, request->to, request->result(inputs));
      request->result = nullptr;
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
  std::map<size_t, std::string> said_;  // of the calls, in their order
  size_t calls_ = 0;
};

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_SOFTWARE_MPI_H_
