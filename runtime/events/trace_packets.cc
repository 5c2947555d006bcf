// Packets of Perfetto's trace format, written by hand: of the library that
// makes them this needs a dozen fields. Their numbers are those of
// protos/perfetto/trace/trace_packet.proto and what it includes.
#include <functional>
#include <map>
#include <utility>

#include "runtime/events/trace.h"

namespace tf_hvd {
namespace {

// Wire types.
constexpr uint32_t kVarint = 0;
constexpr uint32_t kBytes = 2;

void PutVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) {
    out->push_back(static_cast<char>(value | 0x80));
  }
  out->push_back(static_cast<char>(value));
}

void PutNumber(uint32_t field, uint64_t value, std::string* out) {
  PutVarint(field << 3 | kVarint, out);
  PutVarint(value, out);
}

void PutText(uint32_t field, std::string_view text, std::string* out) {
  PutVarint(field << 3 | kBytes, out);
  PutVarint(text.size(), out);
  out->append(text);
}

// Field numbers.
namespace trace {
constexpr uint32_t kPacket = 1;
}
namespace packet {
constexpr uint32_t kClockSnapshot = 6;
constexpr uint32_t kTimestamp = 8;
constexpr uint32_t kSequence = 10;
constexpr uint32_t kTrackEvent = 11;
constexpr uint32_t kInterned = 12;
constexpr uint32_t kSequenceFlags = 13;
constexpr uint32_t kTrackDescriptor = 60;
constexpr uint64_t kCleared = 1;  // nothing is interned
constexpr uint64_t kNeeds = 2;    // what is interned
}  // namespace packet
namespace interned {
constexpr uint32_t kEventName = 2;
constexpr uint32_t kValueName = 3;
constexpr uint32_t kId = 1;
constexpr uint32_t kName = 2;
}  // namespace interned
namespace event {
constexpr uint32_t kValue = 4;  // DebugAnnotation
constexpr uint32_t kType = 9;
constexpr uint32_t kNameId = 10;
constexpr uint32_t kTrack = 11;
constexpr uint32_t kName = 23;
constexpr uint32_t kCounter = 30;
constexpr uint64_t kBegin = 1;
constexpr uint64_t kEnd = 2;
constexpr uint64_t kInstant = 3;
constexpr uint64_t kCount = 4;
}  // namespace event
namespace value {
constexpr uint32_t kNameId = 1;
constexpr uint32_t kInt = 4;
constexpr uint32_t kText = 6;
}  // namespace value
namespace track {
constexpr uint32_t kId = 1;
constexpr uint32_t kName = 2;
constexpr uint32_t kProcess = 3;
constexpr uint32_t kParent = 5;
constexpr uint32_t kCounter = 8;
constexpr uint32_t kOrder = 12;
}  // namespace track
namespace process {
constexpr uint32_t kId = 1;
constexpr uint32_t kName = 6;
}  // namespace process
namespace counter {
constexpr uint32_t kUnit = 3;
constexpr uint64_t kTimeNs = 1;
constexpr uint64_t kCount = 2;
constexpr uint64_t kSizeBytes = 3;
}  // namespace counter
namespace clocks {
constexpr uint32_t kClock = 1;
constexpr uint32_t kId = 1;
constexpr uint32_t kTime = 2;
constexpr uint64_t kRealtime = 1;
constexpr uint64_t kBoottime = 6;  // what times without a clock are of
}  // namespace clocks

// What has a number of its own, the first time that it is used in a file.
class Interned {
 public:
  explicit Interned(uint32_t field) : field_(field) {}

  void Clear() { ids_.clear(); }

  // `added` gets what readers have to be told before. 0: there are too many;
  // a program may make a new name for each call.
  uint64_t IdOf(std::string_view name, std::string* added) {
    const auto known = ids_.find(name);
    if (known != ids_.end()) return known->second;
    if (ids_.size() == kMost) return 0;
    const uint64_t id = ids_.size() + 1;
    ids_.emplace(name, id);
    std::string entry;
    PutNumber(interned::kId, id, &entry);
    PutText(interned::kName, name, &entry);
    PutText(field_, entry, added);
    return id;
  }

 private:
  static constexpr size_t kMost = 10'000;

  const uint32_t field_;
  std::map<std::string, uint64_t, std::less<>> ids_;
};

class TracePackets final : public TraceForm {
 public:
  void Begin(const TraceHead& head, std::string* out) override {
    names_.Clear();
    values_.Clear();
    rank_ = static_cast<uint64_t>(head.rank);
    std::string packet;
    PutNumber(packet::kSequenceFlags, packet::kCleared, &packet);
    // All ranks' times are rank 0's: two that say how they go with the realtime
    // clock would disagree.
    if (rank_ == 0) PutText(packet::kClockSnapshot, ClocksOf(head), &packet);
    Put(&packet, out);

    std::string about;
    PutNumber(process::kId, rank_ + 1, &about);  // processes count from 1
    PutText(process::kName,
            "rank " + std::to_string(head.rank) + " of " +
                std::to_string(head.size) + ", " + head.host + ", process " +
                std::to_string(head.process),
            &about);
    std::string track;
    PutNumber(track::kId, IdOf(kProcessTrack), &track);
    PutText(track::kProcess, about, &track);
    PutTrack(track, out);
  }

  void Track(int track, std::string_view name, std::string* out) override {
    PutTrack(ChildTrack(track, name), out);
  }

  void CounterTrack(int track, std::string_view name, std::string_view unit,
                    std::string* out) override {
    std::string about;
    PutNumber(counter::kUnit,
              unit == "bytes" ? counter::kSizeBytes
              : unit == "ns"  ? counter::kTimeNs
                              : counter::kCount,
              &about);
    std::string child = ChildTrack(track, name);
    PutText(track::kCounter, about, &child);
    PutTrack(child, out);
  }

  void Spans(int track, const std::vector<TraceSpan>& spans,
             std::string* out) override {
    std::vector<int64_t> open;  // ends of those that hold what comes
    for (const TraceSpan& span : spans) {
      while (!open.empty() && open.back() <= span.begin_ns) {
        PutEvent(track, event::kEnd, open.back(), {}, nullptr, out);
        open.pop_back();
      }
      PutEvent(track, event::kBegin, span.begin_ns, span.name, &span.values,
               out);
      open.push_back(span.end_ns);
    }
    for (; !open.empty(); open.pop_back()) {
      PutEvent(track, event::kEnd, open.back(), {}, nullptr, out);
    }
  }

  void Instant(int track, std::string_view name, int64_t time_ns,
               std::string* out) override {
    PutEvent(track, event::kInstant, time_ns, name, nullptr, out);
  }

  void Counter(int track, int64_t time_ns, int64_t value,
               std::string* out) override {
    std::string body;
    PutNumber(event::kType, event::kCount, &body);
    PutNumber(event::kTrack, IdOf(track), &body);
    PutNumber(event::kCounter, static_cast<uint64_t>(value), &body);
    PutTimed(time_ns, body, "", out);
  }

 private:
  static constexpr int kProcessTrack = -1;

  // One moment by two clocks.
  static std::string ClocksOf(const TraceHead& head) {
    std::string now;
    for (const auto& [clock, time_ns] :
         {std::pair(clocks::kRealtime, head.realtime_ns),
          std::pair(clocks::kBoottime, head.time_ns)}) {
      std::string one;
      PutNumber(clocks::kId, clock, &one);
      PutNumber(clocks::kTime, static_cast<uint64_t>(time_ns), &one);
      PutText(clocks::kClock, one, &now);
    }
    return now;
  }

  // Of a track, the same in all files of this rank, and no other rank's.
  uint64_t IdOf(int track) const {
    return (rank_ + 1) << 32 | static_cast<uint64_t>(track + 1);
  }

  std::string ChildTrack(int track, std::string_view name) const {
    std::string child;
    PutNumber(track::kId, IdOf(track), &child);
    PutNumber(track::kParent, IdOf(kProcessTrack), &child);
    PutText(track::kName, name, &child);
    PutNumber(track::kOrder, static_cast<uint64_t>(track), &child);
    return child;
  }

  void PutTrack(std::string_view track, std::string* out) const {
    std::string packet;
    PutText(packet::kTrackDescriptor, track, &packet);
    Put(&packet, out);
  }

  void PutEvent(int track, uint64_t type, int64_t time_ns,
                std::string_view name, const std::vector<TraceValue>* values,
                std::string* out) {
    std::string added;
    std::string body;
    PutNumber(event::kType, type, &body);
    PutNumber(event::kTrack, IdOf(track), &body);
    if (!name.empty()) {
      const uint64_t id = names_.IdOf(name, &added);
      if (id != 0) PutNumber(event::kNameId, id, &body);
      if (id == 0) PutText(event::kName, name, &body);
    }
    if (values != nullptr) {
      for (const TraceValue& each : *values) {
        std::string one;
        PutNumber(value::kNameId, values_.IdOf(each.name, &added), &one);
        if (const auto* text = std::get_if<std::string_view>(&each.value)) {
          PutText(value::kText, *text, &one);
        } else {
          PutNumber(value::kInt,
                    static_cast<uint64_t>(std::get<int64_t>(each.value)), &one);
        }
        PutText(event::kValue, one, &body);
      }
    }
    PutTimed(time_ns, body, added, out);
  }

  void PutTimed(int64_t time_ns, std::string_view body, std::string_view added,
                std::string* out) const {
    std::string packet;
    PutNumber(packet::kTimestamp, static_cast<uint64_t>(time_ns), &packet);
    PutNumber(packet::kSequenceFlags, packet::kNeeds, &packet);
    if (!added.empty()) PutText(packet::kInterned, added, &packet);
    PutText(packet::kTrackEvent, body, &packet);
    Put(&packet, out);
  }

  void Put(std::string* packet, std::string* out) const {
    PutNumber(packet::kSequence, rank_ + 1, packet);
    PutText(trace::kPacket, *packet, out);
  }

  uint64_t rank_ = 0;
  Interned names_{interned::kEventName};
  Interned values_{interned::kValueName};
};

}  // namespace

std::unique_ptr<TraceForm> MakeTracePackets() {
  return std::make_unique<TracePackets>();
}

}  // namespace tf_hvd
