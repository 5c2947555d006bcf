// Entry: one submitted request on its way through this rank, with the memory
// it reads and writes and the caller's completion.
//
// Made by a kernel (or the C API) on any thread, handed over to the tensor
// queue, from then on owned by whoever holds the engine.
#ifndef TF_HVD_RUNTIME_REQUEST_ENTRY_H_
#define TF_HVD_RUNTIME_REQUEST_ENTRY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/memory.h"
#include "runtime/request/caller_state.h"
#include "runtime/request/completion.h"
#include "runtime/request/request.h"

namespace tf_hvd {

struct Entry {
  int32_t set = kWorldSet;
  std::string name;
  Request request;
  // By tensor; `count` is of the input. `output` may equal `input` (in place).
  // For allgather and alltoall it is null until `allocate` has given it.
  std::vector<Span> tensors;
  // Where all of them lie; as request.device says.
  Memory memory;
  // See OperationSpec::stored.
  std::optional<DType> stored;

  // Allgather: how many rows each tensor has here. Alltoall: how many go to
  // each rank of the set.
  std::vector<int64_t> rows;

  // Allgather and alltoall: called once for each tensor, by the holder of the
  // progress lock, when it is known how many rows come from each rank
  // (`first_dims`, in the order of the set's ranks). Gives the memory for the
  // whole result.
  std::function<Status(size_t tensor, const std::vector<int64_t>& first_dims,
                       void** output)>
      allocate;

  // Of a device's memory: called when `allocate` has given all of it. Gives the
  // event after which it may be used.
  std::function<Status(std::shared_ptr<GpuEvent>* ready)> allocated;

  // Keeps the memory in `tensors` alive; the runtime lets go of it when no
  // transport can still touch that memory, which after an abort may be later
  // than the completion.
  std::shared_ptr<void> keepalive;

  // Set when the call is wrong on this rank alone: it is completed here with
  // this text and voted as a local_error, so that the other ranks fail as well.
  std::string local_error;
  int64_t step = -1;  // the caller's, compared between ranks; -1: none

  Completion done;

  // Null: the caller stays until `done` is fired.
  std::shared_ptr<const CallerState> caller;

  // The thread that submits has nothing to do before `done` is fired, as that
  // of an eager call: it may move the request itself, of any size.
  bool caller_waits = false;

  int64_t submitted_ns = 0;  // set by the queue: for the stall report
};

// True if nobody waits for the entry any more, which may still be needed by
// other ranks: it was refused here, or its caller has gone.
inline bool IsAnswered(const Entry& entry) {
  return !entry.done.pending() ||
         (entry.caller != nullptr && entry.caller->gone());
}

// What the entry moves through this rank's memory. Of allgather the other
// ranks' rows are not known yet: as if all of them gave as much as this one.
inline int64_t ExpectedBytes(const Entry& entry, size_t ranks) {
  const OpKind kind = entry.request.kind;
  if (kind != OpKind::kAllgather && kind != OpKind::kAlltoall) {
    return TotalBytes(entry.request);
  }
  int64_t bytes = 0;
  for (size_t i = 0; i < entry.tensors.size(); ++i) {
    bytes += entry.tensors[i].count *
             static_cast<int64_t>(SizeOf(entry.request.tensors[i].dtype));
  }
  return kind == OpKind::kAlltoall ? bytes
                                   : bytes * static_cast<int64_t>(ranks);
}

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_REQUEST_ENTRY_H_
