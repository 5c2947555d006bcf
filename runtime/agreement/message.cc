#include "runtime/agreement/message.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/wire.h"

namespace tf_hvd {

namespace {

// Flags of a vote.
constexpr uint16_t kVoteJoined = 1;
constexpr uint16_t kVoteDiffers = 2;
constexpr uint16_t kVoteLocalError = 4;
constexpr uint16_t kVoteStep = 8;
constexpr uint16_t kVoteOffStep = 16;
constexpr uint16_t kVoteSources = 32;  // of the lowest rank
constexpr uint16_t kVoteOtherSources =
    64;  // of another rank, if the lowest has none
constexpr uint16_t kVoteOffSources = 128;
constexpr uint16_t kVoteTold = 256;

// Flags of a response in a batch.
constexpr uint8_t kResponseNamed = 1;
constexpr uint8_t kResponseDefine = 2;
constexpr uint8_t kResponseError = 4;
constexpr uint8_t kResponseJoined = 8;
constexpr uint8_t kResponseClose = 16;
constexpr uint8_t kResponseThrough = 32;

// Flags of a leave.
constexpr uint16_t kLeaveThrough = 1;

// Flags of an ask and a query.
constexpr uint16_t kAskEarly = 1;

uint16_t SourcesFlag(const Vote& vote) {
  if (!vote.sources.has_value()) return 0;
  return vote.sources->rank == vote.first.rank ? kVoteSources
                                               : kVoteOtherSources;
}

uint16_t VoteFlags(const Vote& vote) {
  return static_cast<uint16_t>(
      (vote.joined ? kVoteJoined : 0) |
      (vote.other.has_value() ? kVoteDiffers : 0) |
      (vote.local_error.has_value() ? kVoteLocalError : 0) |
      (vote.step >= 0 ? kVoteStep : 0) |
      (vote.off_step.has_value() ? kVoteOffStep : 0) | SourcesFlag(vote) |
      (vote.off_sources.has_value() ? kVoteOffSources : 0) |
      (vote.told.empty() ? 0 : kVoteTold));
}

void PutVote(const Message& message, Writer* out) {
  const Vote& vote = message.vote;
  out->Put(message.set);
  out->Put(message.slot);
  out->Put(vote.last_rank);
  out->Put(vote.first.rank);
  if (message.slot == kNoSlot) {
    out->PutText(message.name);
    out->PutText(vote.first.request.bytes());
  }
  if (vote.other.has_value()) {
    out->Put(vote.other->rank);
    out->PutText(vote.other->request.bytes());
  }
  if (vote.local_error.has_value()) {
    out->Put(vote.local_error->rank);
    out->PutText(vote.local_error->text);
  }
  if (vote.step >= 0) out->Put(vote.step);
  if (vote.off_step.has_value()) {
    out->Put(vote.off_step->rank);
    out->Put(vote.off_step->step);
  }
  if (vote.sources.has_value()) {
    if (SourcesFlag(vote) == kVoteOtherSources) out->Put(vote.sources->rank);
    out->Put(vote.sources->digest);
  }
  if (vote.off_sources.has_value()) {
    out->Put(vote.off_sources->rank);
    out->Put(vote.off_sources->digest);
  }
  if (vote.told.empty()) return;
  out->Put(static_cast<uint32_t>(vote.told.size()));
  for (const ToldSources& one : vote.told) {
    out->Put(one.digest);
    out->PutText(one.bytes);
  }
}

SharedRequest GetRequest(Reader* in) {
  SharedRequest request;
  if (!SharedRequest::Decode(in->GetText(), &request).ok()) in->Fail();
  return request;
}

void GetVote(uint16_t flags, Reader* in, Message* message) {
  Vote& vote = message->vote;
  message->set = in->Get<int32_t>();
  message->slot = in->Get<uint32_t>();
  vote.last_rank = in->Get<int32_t>();
  vote.first.rank = in->Get<int32_t>();
  if (message->slot == kNoSlot) {
    message->name = in->GetText();
    vote.first.request = GetRequest(in);
  }
  vote.joined = (flags & kVoteJoined) != 0;
  if ((flags & kVoteDiffers) != 0) {
    const auto rank = in->Get<int32_t>();
    vote.other = Submission{rank, GetRequest(in)};
  }
  if ((flags & kVoteLocalError) != 0) {
    const auto rank = in->Get<int32_t>();
    vote.local_error = LocalError{rank, std::string(in->GetText())};
  }
  if ((flags & kVoteStep) != 0) vote.step = in->Get<int64_t>();
  if ((flags & kVoteOffStep) != 0) {
    const auto rank = in->Get<int32_t>();
    vote.off_step = RankStep{rank, in->Get<int64_t>()};
  }
  if ((flags & (kVoteSources | kVoteOtherSources)) != 0) {
    const bool of_lowest = (flags & kVoteSources) != 0;
    const int32_t rank = of_lowest ? vote.first.rank : in->Get<int32_t>();
    vote.sources = RankSources{rank, in->Get<int64_t>()};
  }
  if ((flags & kVoteOffSources) != 0) {
    const auto rank = in->Get<int32_t>();
    vote.off_sources = RankSources{rank, in->Get<int64_t>()};
  }
  if ((flags & kVoteTold) == 0) return;
  for (uint32_t n = in->Get<uint32_t>(); n > 0 && in->ok(); --n) {
    const auto digest = in->Get<int64_t>();
    vote.told.push_back({digest, std::string(in->GetText())});
  }
}

void PutResponse(const Response& response, Writer* out) {
  const bool named = response.slot == kNoSlot || response.define;
  out->Put(static_cast<uint8_t>((named ? kResponseNamed : 0) |
                                (response.define ? kResponseDefine : 0) |
                                (response.error.empty() ? 0 : kResponseError) |
                                (response.joined ? kResponseJoined : 0) |
                                (response.close ? kResponseClose : 0) |
                                (response.through ? kResponseThrough : 0)));
  out->Put(response.key.first);
  out->Put(response.slot);
  out->Put(response.value);
  if (named) {
    out->PutText(response.key.second);
    out->PutText(response.request.bytes());
  }
  if (!response.error.empty()) out->PutText(response.error);
}

void GetBatch(Reader* in, std::vector<Response>* batch) {
  for (uint32_t n = in->Get<uint32_t>(); n > 0 && in->ok(); --n) {
    Response response;
    const auto flags = in->Get<uint8_t>();
    response.define = (flags & kResponseDefine) != 0;
    response.joined = (flags & kResponseJoined) != 0;
    response.close = (flags & kResponseClose) != 0;
    response.through = (flags & kResponseThrough) != 0;
    response.key.first = in->Get<int32_t>();
    response.slot = in->Get<uint32_t>();
    response.value = in->Get<int32_t>();
    if ((flags & kResponseNamed) != 0) {
      response.key.second = in->GetText();
      if (response.close) {
        in->GetText();
      } else {
        response.request = GetRequest(in);
      }
    } else if (!response.close &&
               (response.slot == kNoSlot || response.define)) {
      in->Fail();  // no slot says which request this answers
    }
    if ((flags & kResponseError) != 0) response.error = in->GetText();
    batch->push_back(std::move(response));
  }
}

void PutRanks(const RankList& ranks, Writer* out) {
  out->Put(ranks.count);
  out->Put(static_cast<uint8_t>(ranks.named.size()));
  for (const int32_t rank : ranks.named) out->Put(rank);
}

RankList GetRanks(Reader* in) {
  RankList ranks;
  ranks.count = in->Get<uint32_t>();
  for (uint8_t n = in->Get<uint8_t>(); n > 0 && in->ok(); --n) {
    ranks.named.push_back(in->Get<int32_t>());
  }
  return ranks;
}

void PutAnswer(const StallAnswer& answer, Writer* out) {
  out->Put(static_cast<uint8_t>(answer.agreed));
  out->Put(answer.age_ms);
  out->Put(answer.stuck_ms);
  PutRanks(answer.voted, out);
  PutRanks(answer.missing, out);
  PutRanks(answer.silent, out);
  out->Put(static_cast<uint8_t>(answer.waits.size()));
  for (const WaitGroup& group : answer.waits) {
    out->PutText(group.waits_for);
    PutRanks(group.ranks, out);
    out->Put(static_cast<uint8_t>(group.ever_compiled));
    out->Put(static_cast<uint8_t>(group.waits_in_compiled));
    out->PutText(group.compiling);
    out->PutText(group.place);
  }
}

void GetAnswer(Reader* in, StallAnswer* answer) {
  answer->agreed = in->Get<uint8_t>() != 0;
  answer->age_ms = in->Get<uint32_t>();
  answer->stuck_ms = in->Get<uint32_t>();
  answer->voted = GetRanks(in);
  answer->missing = GetRanks(in);
  answer->silent = GetRanks(in);
  for (uint8_t n = in->Get<uint8_t>(); n > 0 && in->ok(); --n) {
    WaitGroup group;
    group.waits_for = in->GetText();
    group.ranks = GetRanks(in);
    group.ever_compiled = in->Get<uint8_t>() != 0;
    group.waits_in_compiled = in->Get<uint8_t>() != 0;
    group.compiling = in->GetText();
    group.place = in->GetText();
    answer->waits.push_back(std::move(group));
  }
}

void PutBody(const Message& message, Writer* out) {
  switch (message.kind) {
    case MessageKind::kVote:
      return PutVote(message, out);
    case MessageKind::kResponses:
      return;  // BatchEncoder's
    case MessageKind::kLeave:
      out->Put(message.rank);
      return out->PutText(message.text);
    case MessageKind::kAsk:
      out->Put(message.set);
      return out->PutText(message.name);
    case MessageKind::kQuery:
      out->Put(message.set);
      out->PutText(message.name);
      out->Put(message.query);
      return out->Put(message.wait_ns);
    case MessageKind::kAnswer:
      out->Put(message.set);
      out->PutText(message.name);
      out->Put(message.query);
      return PutAnswer(message.answer, out);
    case MessageKind::kAskClock:
    case MessageKind::kClock:
      out->Put(message.clock.asked_ns);
      out->Put(message.clock.answered_ns);
      out->Put(message.clock.offset_ns);
      return out->Put(message.clock.error_ns);
  }
}

bool GetBody(uint16_t flags, Reader* in, Message* message) {
  switch (message->kind) {
    case MessageKind::kVote:
      GetVote(flags, in, message);
      return true;
    case MessageKind::kResponses:
      GetBatch(in, &message->batch);
      return true;
    case MessageKind::kLeave:
      message->rank = in->Get<int32_t>();
      message->through = (flags & kLeaveThrough) != 0;
      message->text = in->GetText();
      return true;
    case MessageKind::kAsk:
      message->early = (flags & kAskEarly) != 0;
      message->set = in->Get<int32_t>();
      message->name = in->GetText();
      return true;
    case MessageKind::kQuery:
      message->early = (flags & kAskEarly) != 0;
      message->set = in->Get<int32_t>();
      message->name = in->GetText();
      message->query = in->Get<uint32_t>();
      message->wait_ns = in->Get<int64_t>();
      return true;
    case MessageKind::kAnswer:
      message->set = in->Get<int32_t>();
      message->name = in->GetText();
      message->query = in->Get<uint32_t>();
      GetAnswer(in, &message->answer);
      return true;
    case MessageKind::kAskClock:
    case MessageKind::kClock:
      message->clock.asked_ns = in->Get<int64_t>();
      message->clock.answered_ns = in->Get<int64_t>();
      message->clock.offset_ns = in->Get<int64_t>();
      message->clock.error_ns = in->Get<int64_t>();
      return true;
  }
  return false;
}

uint16_t FlagsOf(const Message& message) {
  switch (message.kind) {
    case MessageKind::kVote:
      return VoteFlags(message.vote);
    case MessageKind::kLeave:
      return message.through ? kLeaveThrough : uint16_t{0};
    case MessageKind::kAsk:
    case MessageKind::kQuery:
      return message.early ? kAskEarly : uint16_t{0};
    default:
      return 0;
  }
}

void PutHeader(MessageKind kind, uint16_t flags, Writer* out) {
  out->Put(uint32_t{0});
  out->Put(static_cast<uint8_t>(kind));
  out->Put(uint8_t{0});
  out->Put(flags);
}

// The whole length is known only at the end.
std::string Finish(Writer* out) {
  out->PatchU32(0, static_cast<uint32_t>(out->size()));
  return out->Take();
}

}  // namespace

std::string EncodeMessage(const Message& message) {
  if (message.kind == MessageKind::kResponses) {
    std::vector<size_t> all(message.batch.size());
    std::iota(all.begin(), all.end(), size_t{0});
    return std::string(BatchEncoder(message.batch).Encode(all));
  }
  Writer out;
  PutHeader(message.kind, FlagsOf(message), &out);
  PutBody(message, &out);
  return Finish(&out);
}

std::string_view BatchEncoder::Encode(const std::vector<size_t>& places) {
  const auto [it, is_new] = messages_.try_emplace(places);
  if (!is_new) return it->second;
  Writer out;
  PutHeader(MessageKind::kResponses, 0, &out);
  out.Put(static_cast<uint32_t>(places.size()));
  for (const size_t place : places) {
    std::string& bytes = encoded_[place];
    if (bytes.empty()) {
      Writer one;
      PutResponse(batch_[place], &one);
      bytes = one.Take();
      ++responses_encoded_;
    }
    out.PutBytes(bytes);
  }
  it->second = Finish(&out);
  return it->second;
}

Status DecodeMessage(std::string_view bytes, Message* message) {
  Reader in(bytes);
  *message = Message();
  const auto size = in.Get<uint32_t>();
  message->kind = static_cast<MessageKind>(in.Get<uint8_t>());
  in.Get<uint8_t>();
  const auto flags = in.Get<uint16_t>();
  if (size != bytes.size() || !GetBody(flags, &in, message) || !in.AtEnd()) {
    return Internal("bug in tf_hvd: a message between ranks is malformed");
  }
  return Status::Ok();
}

size_t MessageBytes(std::string_view bytes) {
  if (bytes.size() < kHeaderBytes) return 0;
  uint32_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof(size));
  return std::max<size_t>(size, kHeaderBytes);
}

namespace {
constexpr size_t kReadBytes = 16 * 1024;
}  // namespace

bool MessageStream::Push() {
  if (!HasOutput()) return false;
  const size_t before = out_begin_;
  size_t taken = 0;
  do {
    taken = edge_->Write(out_.data() + out_begin_, out_.size() - out_begin_);
    out_begin_ += taken;
  } while (taken > 0 && HasOutput());
  if (!HasOutput()) {
    out_.clear();
    out_begin_ = 0;
    edge_->Flush();
    return true;
  }
  edge_->Flush();
  const bool moved = out_begin_ > before;
  if (out_begin_ > out_.size() / 2) {  // under steady load it is never empty
    out_.erase(0, out_begin_);
    out_begin_ = 0;
  }
  return moved;
}

bool MessageStream::Pull(const std::function<void(std::string_view)>& receive) {
  char buffer[kReadBytes];
  bool moved = false;
  while (const size_t got = edge_->Read(buffer, sizeof(buffer))) {
    moved = true;
    in_.append(buffer, got);
    size_t begin = 0;
    for (;;) {
      const std::string_view rest = std::string_view(in_).substr(begin);
      const size_t size = MessageBytes(rest);
      if (size == 0 || size > rest.size()) break;
      receive(rest.substr(0, size));
      begin += size;
    }
    in_.erase(0, begin);
  }
  return moved;
}

}  // namespace tf_hvd
