#include "runtime/execution/executor.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"

namespace tf_hvd {

namespace {

// How long an operation makes progress before the other operations, and the
// agreement, are polled again.
constexpr int64_t kBudgetNs = 100'000;

// A rank that has joined contributes zeros, in the other ranks' kind of memory.
Status NothingServes(const OperationSpec& spec) {
  if (spec.memory.kind != MemoryKind::kDevice) {
    return Internal("bug in tf_hvd: no backend accepts this operation");
  }
  return FailedPrecondition(
      "the tensors are on GPUs, but a rank that has joined has no CUDA driver "
      "(libcuda.so.1) and cannot contribute zeros; put the collective on the "
      "CPU on all ranks: with tf.device('/CPU:0')");
}

}  // namespace

void Executor::Add(std::vector<Response> batch) {
  const int64_t now_ns = NowNs();
  for (Response& response : batch) {
    const int64_t order = ++ordered_[response.key.first];
    if (!response.own.has_value()) continue;
    // For add_process_set it is the set.
    const int last =
        response.request->kind == OpKind::kAddSet ? -1 : response.value;
    response.own->done.record().Agreed(order, last, now_ns);
  }
  Batch added;
  added.plan = PlanFusion(batch, fusion_threshold_);
  added.responses = std::move(batch);
  batches_.push_back(std::move(added));
  has_work_ = true;
}

bool Executor::Progress(Status* status) {
  bool moved = false;
  if (!CanRun()) return moved;
  awaited_ = -1;
  // Later operations make progress while this one waits, and not at its
  // expense.
  bool busy = false;
  for (auto one = under_way_.begin();
       status->ok() && !busy && one != under_way_.end();) {
    bool ended = false;
    *status = Move(&*one, &moved, &ended);
    if (awaited_ < 0) awaited_ = one->awaited;
    busy = one->busy;
    one = ended ? under_way_.erase(one) : std::next(one);
  }
  if (status->ok() && !busy) *status = Begin(&moved);
  if (!status->ok()) {
    broken_ = moved = true;
  }
  if (moved) ++moved_;
  NoteWork();
  return moved;
}

void Executor::NoteWork() {
  has_work_ = !batches_.empty() || !under_way_.empty();
}

// In the agreed order. A collective waits until all operations of the previous
// ones have been made, because operations are numbered when made.
Status Executor::Begin(bool* moved) {
  while (!batches_.empty()) {
    if (!under_way_.empty()) {
      const UnderWay& last = under_way_.back();
      if (last.busy || last.waits || !last.collective.last_given()) break;
    }
    Batch& batch = batches_.front();
    std::vector<Response> responses;
    ++collectives_;
    const int64_t now_ns = NowNs();
    for (const size_t i : batch.plan[batch.next]) {
      responses.push_back(std::move(batch.responses[i]));
      // Moved-from objects still exist, but are empty.
      batch.responses[i].own.reset();
      if (warn_ != nullptr) NoteLoose(responses.back());
      std::optional<Entry>& own = responses.back().own;
      if (own.has_value()) own->done.record().Started(collectives_, now_ns);
      if (own.has_value() && own->listener != nullptr) {
        own->listener->Begins(&*own);
      }
    }
    begun_ = ++batch.next < batch.plan.size();
    if (!begun_) batches_.pop_front();
    UnderWay& one = under_way_.emplace_back(std::move(responses),
                                            PhaseTimer(phases_, collectives_));
    *moved = true;
    bool ended = false;
    TF_HVD_RETURN_IF_ERROR(Move(&one, moved, &ended));
    if (ended) under_way_.pop_back();
  }
  return Status::Ok();
}

void Executor::NoteLoose(const Response& response) {
  if (!response.own.has_value()) return;
  const std::string text = loose_.Note(response.key, *response.request);
  if (!text.empty()) warn_(text);
}

// Makes the next operation, if the backend has room for it. Ends the collective
// if none is left.
Status Executor::MakeNext(UnderWay* one, bool* moved, bool* ended) {
  Collective& collective = one->collective;
  if (!one->waits) {
    const Status status = collective.Next(&one->next, &one->waits);
    if (!status.ok()) return status.WithContext(collective.What());
    if (!one->waits) {
      const std::string& error = collective.first().error;
      const Status how =
          error.empty() ? Status::Ok() : FailedPrecondition(error);
      if (how.ok()) TF_HVD_RETURN_IF_ERROR(TellOfSets(collective.first()));
      for (Response& response : collective.responses()) End(&response, how);
      *ended = *moved = true;
      return Status::Ok();
    }
    one->backend = BackendFor(one->next);
    if (one->backend == nullptr) {
      return NothingServes(one->next).WithContext(collective.What());
    }
    for (Response& response : collective.responses()) {
      if (response.own.has_value()) {
        response.own->done.record().MovesBy(one->backend->name());
      }
    }
  }
  if (UnderWayOn(one->backend) >= one->backend->window()) return Status::Ok();
  one->waits = false;
  one->next.number = numbers_[one->next.set]++;
  const Status status =
      one->backend->Make(std::move(one->next), &one->operation);
  return status.ok() ? status : status.WithContext(collective.What());
}

Status Executor::TellOfSets(const Response& response) {
  for (Backend* backend : backends_) {
    if (response.request->kind == OpKind::kAddSet) {
      const std::vector<int> ranks(response.request->ranks.begin(),
                                   response.request->ranks.end());
      TF_HVD_RETURN_IF_ERROR(backend->SetAdded(response.value, ranks));
    } else if (response.request->kind == OpKind::kRemoveSet) {
      backend->SetRemoved(response.request->removed_set);
    }
  }
  return Status::Ok();
}

Status Executor::Move(UnderWay* one, bool* moved, bool* ended) {
  one->awaited = -1;
  one->busy = one->rings = false;
  while (!*ended) {
    if (one->operation == nullptr) {
      TF_HVD_RETURN_IF_ERROR(MakeNext(one, moved, ended));
      if (one->operation == nullptr) break;
    }
    Poll poll;
    if (phases_ != nullptr && phases_->on()) {
      poll.phases = &one->timer;
      one->timer.Enter(NowNs());
    }
    const Status status = one->operation->Progress(kBudgetNs, &poll);
    if (poll.phases != nullptr) one->timer.Exit(poll.awaited, NowNs());
    if (!status.ok()) return status.WithContext(one->collective.What());
    if (poll.enqueued != nullptr) one->collective.Enqueued(poll.enqueued);
    // A step compiled for a GPU lets the device decide when to start. So this
    // is not a wait for other ranks, and there is nothing to do here.
    if (poll.computing) ++moved_;
    *moved |= poll.moved || poll.done;
    one->awaited = poll.awaited;
    one->rings = poll.rings;
    if (!poll.done) {
      Record(one, poll);
      one->busy = poll.moved && poll.awaited < 0;
      break;
    }
    one->operation.reset();
  }
  if (*ended) one->timer.Flush();
  return Status::Ok();
}

void Executor::Record(UnderWay* one, const Poll& poll) {
  for (Response& response : one->collective.responses()) {
    if (!response.own.has_value()) continue;
    response.own->done.record().Moved(poll.part, poll.awaited);
    break;
  }
}

Backend* Executor::BackendFor(const OperationSpec& spec) const {
  for (Backend* backend : backends_) {
    if (backend->Serves(spec)) return backend;
  }
  return nullptr;
}

size_t Executor::UnderWayOn(const Backend* backend) const {
  size_t count = 0;
  for (const UnderWay& one : under_way_) {
    count += one.operation != nullptr && one.backend == backend ? 1 : 0;
  }
  return count;
}

void Executor::End(Response* response, const Status& status) {
  if (!response->own.has_value()) return;
  host_->Ended(response->key, std::move(response->own->done), status,
               response->value);
}

// The memory of the operation and its responses may still be written to, by a
// late message that may come at an unknown time or never.
void Executor::KeepIndefinitely(std::list<UnderWay>* list,
                                std::list<UnderWay>::iterator one) {
  static Mutex mutex;
  static auto* const kept PT_GUARDED_BY(mutex) = new std::list<UnderWay>;
  const MutexLock lock(&mutex);
  kept->splice(kept->end(), *list, one);
}

void Executor::Fail(const Status& status) {
  for (auto one = under_way_.begin(); one != under_way_.end();) {
    const auto next = std::next(one);
    for (Response& response : one->collective.responses()) {
      End(&response, status);
    }
    if (one->operation != nullptr && !one->operation->Abandon()) {
      KeepIndefinitely(&under_way_, one);
    }
    one = next;
  }
  under_way_.clear();
  for (Batch& batch : batches_) {
    for (Response& response : batch.responses) End(&response, status);
  }
  batches_.clear();
  begun_ = false;
  has_work_ = false;
}

namespace {

// A group of several types is several reductions, so it is not fused. On a GPU,
// other libraries sum, in an order that depends on the number of elements, and
// the content of a batch depends on timing.
bool Fusable(const Response& run) {
  const auto& tensors = run.request->tensors;
  return run.request->device == DeviceKind::kCpu && run.error.empty() &&
         run.request->kind == OpKind::kAllreduce && !tensors.empty() &&
         std::all_of(tensors.begin(), tensors.end(),
                     [&](const TensorSpec& tensor) {
                       return tensor.dtype == tensors[0].dtype;
                     });
}

auto FusionKey(const Response& run) {
  const Request& request = *run.request;
  return std::make_tuple(run.key.first, request.tensors[0].dtype,
                         request.reduce_op, request.prescale,
                         request.postscale);
}

}  // namespace

std::vector<std::vector<size_t>> PlanFusion(const std::vector<Response>& batch,
                                            int64_t threshold) {
  struct Open {
    size_t list;
    int64_t bytes;
  };
  std::map<decltype(FusionKey(batch[0])), Open> open;
  std::vector<std::vector<size_t>> plan;
  for (size_t i = 0; i < batch.size(); ++i) {
    if (threshold <= 0 || !Fusable(batch[i])) {
      plan.push_back({i});
      continue;
    }
    const int64_t bytes = TotalBytes(*batch[i].request);
    const auto key = FusionKey(batch[i]);
    const auto it = open.find(key);
    if (it != open.end() && it->second.bytes + bytes <= threshold) {
      plan[it->second.list].push_back(i);
      it->second.bytes += bytes;
    } else {
      open[key] = {plan.size(), bytes};
      plan.push_back({i});
    }
  }
  return plan;
}

}  // namespace tf_hvd
