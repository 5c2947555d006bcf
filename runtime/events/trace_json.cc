// Chrome's trace events, as docs/timeline.md describes them: an array, one
// event to a line, times in microseconds.
#include <cstdio>
#include <cstdlib>

#include "runtime/events/trace.h"

namespace tf_hvd {
namespace {

void PutText(std::string_view text, std::string* out) {
  out->push_back('"');
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof(code), "\\u%04x", c);
      out->append(code);
    } else {
      out->push_back(c);
    }
  }
  out->push_back('"');
}

void PutUs(int64_t ns, std::string* out) {
  char text[32];
  std::snprintf(text, sizeof(text), "%s%lld.%03lld", ns < 0 ? "-" : "",
                std::llabs(ns / 1000), std::llabs(ns % 1000));
  out->append(text);
}

class TraceJson final : public TraceForm {
 public:
  void Begin(const TraceHead& head, std::string* out) override {
    rank_ = std::to_string(head.rank);
    out->append("[\n");
    Meta("process_name", out);
    out->append("\"name\":");
    PutText("rank " + rank_, out);
    out->append("}},\n");
    Meta("process_sort_index", out);
    out->append("\"sort_index\":" + rank_ + "}},\n");
    Meta("tf_hvd", out);
    out->append("\"rank\":" + rank_ + ",\"size\":" + std::to_string(head.size) +
                ",\"process\":" + std::to_string(head.process) + ",\"host\":");
    PutText(head.host, out);
    // As text: many readers use doubles for JSON's numbers, which have 53 bits.
    out->append(",\"realtime_ns\":\"" + std::to_string(head.realtime_ns) +
                "\",\"time_ns\":\"" + std::to_string(head.time_ns) + "\"}},\n");
  }

  void Track(int track, std::string_view name, std::string* out) override {
    Meta("thread_name", out, track);
    out->append("\"name\":");
    PutText(name, out);
    out->append("}},\n");
    Meta("thread_sort_index", out, track);
    out->append("\"sort_index\":" + std::to_string(track) + "}},\n");
  }

  void Spans(int track, const std::vector<TraceSpan>& spans,
             std::string* out) override {
    for (const TraceSpan& span : spans) {
      Event('X', span.name, span.begin_ns, track, out);
      out->append(",\"dur\":");
      PutUs(span.end_ns - span.begin_ns, out);
      if (!span.values.empty()) PutValues(span.values, out);
      out->append("},\n");
    }
  }

  void Instant(int track, std::string_view name, int64_t time_ns,
               std::string* out) override {
    Event('i', name, time_ns, track, out);
    out->append(",\"s\":\"p\"},\n");
  }

  void Counter(std::string_view name, std::string_view unit, int64_t time_ns,
               int64_t value, std::string* out) override {
    Event('C', name, time_ns, 0, out);
    out->append(",\"args\":{");
    PutText(unit, out);
    out->append(":" + std::to_string(value) + "}},\n");
  }

 private:
  void Meta(std::string_view name, std::string* out, int track = 0) const {
    out->append("{\"ph\":\"M\",\"name\":");
    PutText(name, out);
    out->append(",\"pid\":" + rank_ + ",\"tid\":" + std::to_string(track) +
                ",\"args\":{");
  }

  void Event(char kind, std::string_view name, int64_t time_ns, int track,
             std::string* out) const {
    out->append("{\"ph\":\"").push_back(kind);
    out->append("\",\"name\":");
    PutText(name, out);
    out->append(",\"pid\":" + rank_ + ",\"tid\":" + std::to_string(track) +
                ",\"ts\":");
    PutUs(time_ns, out);
  }

  static void PutValues(const std::vector<TraceValue>& values,
                        std::string* out) {
    const char* before = ",\"args\":{";
    for (const TraceValue& each : values) {
      out->append(before);
      before = ",";
      PutText(each.name, out);
      out->push_back(':');
      if (const auto* text = std::get_if<std::string_view>(&each.value)) {
        PutText(*text, out);
      } else {
        out->append(std::to_string(std::get<int64_t>(each.value)));
      }
    }
    out->push_back('}');
  }

  std::string rank_;
};

}  // namespace

std::unique_ptr<TraceForm> MakeTraceJson() {
  return std::make_unique<TraceJson>();
}

}  // namespace tf_hvd
