#include "kernels/xla/compiled_call.h"

#include "base/wire.h"

namespace tf_hvd {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

std::string ToText(const std::string& bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char byte : bytes) {
    const auto value = static_cast<unsigned char>(byte);
    text += kDigits[value / 16];
    text += kDigits[value % 16];
  }
  return text;
}

// Characters other than hex digits become other bytes, which decode to no valid
// call.
std::string FromText(std::string_view text) {
  std::string bytes(text.size() / 2, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    const size_t high = kDigits.find(text[2 * i]);
    const size_t low = kDigits.find(text[2 * i + 1]);
    bytes[i] = static_cast<char>(16 * high + low);
  }
  return bytes;
}

}  // namespace

std::string EncodeCall(const CompiledCall& call) {
  Writer out;
  out.Put(call.set);
  out.PutText(call.name);
  out.PutText(call.source);
  out.PutText(call.error);
  out.PutText(EncodeRequest(call.request));
  return ToText(out.Take());
}

Status DecodeCall(std::string_view text, CompiledCall* call) {
  const std::string bytes = FromText(text);
  Reader in(bytes);
  call->set = in.Get<int32_t>();
  call->name = in.GetText();
  call->source = in.GetText();
  call->error = in.GetText();
  const std::string_view request = in.GetText();
  if (!in.AtEnd()) {
    return Internal("bug in tf_hvd: a compiled call is malformed");
  }
  return DecodeRequest(request, &call->request);
}

std::string EncodeVerdict(const Verdict& verdict) {
  Writer out;
  out.Put(static_cast<uint8_t>(verdict.fails));
  out.PutText(verdict.before);
  out.PutText(verdict.after);
  for (const std::string& name : verdict.names) out.PutText(name);
  return ToText(out.Take());
}

Status DecodeVerdict(std::string_view text, Verdict* verdict) {
  const std::string bytes = FromText(text);
  Reader in(bytes);
  verdict->fails = in.Get<uint8_t>() != 0;
  verdict->before = in.GetText();
  verdict->after = in.GetText();
  while (in.ok() && !in.AtEnd()) verdict->names.emplace_back(in.GetText());
  return in.ok() ? Status::Ok()
                 : Internal("bug in tf_hvd: a compiled verdict is malformed");
}

}  // namespace tf_hvd
