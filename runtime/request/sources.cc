#include "runtime/request/sources.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <random>

#include "base/mix.h"
#include "base/wire.h"

namespace tf_hvd {
namespace {

uint64_t Fold(uint64_t digest, uint64_t next) {
  return Mixed(digest + 0x9e3779b97f4a7c15u + Mixed(next));
}

int64_t NewNumber() {
  std::random_device random;
  const uint64_t bits = (uint64_t{random()} << 32) | random();
  return static_cast<int64_t>(bits >> 2) | 1;
}

struct Named {
  int64_t identity = 0;
  std::string_view name;
};

std::vector<Named> Read(std::string_view bytes) {
  std::vector<Named> list;
  Reader in(bytes);
  while (in.ok() && !in.AtEnd()) {
    const auto identity = in.Get<int64_t>();
    list.push_back({identity, in.GetText()});
  }
  return in.ok() ? list : std::vector<Named>();
}

std::string Text(const std::vector<Named>& list, size_t place) {
  if (list.empty()) return "other variables";
  if (place >= list.size()) {
    return "no variable (tensor " + std::to_string(place) + ")";
  }
  const std::string_view name = list[place].name;
  return (name.empty() ? std::string("a tensor that is not a variable")
                       : "'" + std::string(name) + "'") +
         " (tensor " + std::to_string(place) + ")";
}

}  // namespace

std::pair<std::string, std::string> DescribeSources(std::string_view first,
                                                    std::string_view second) {
  const std::vector<Named> a = Read(first);
  const std::vector<Named> b = Read(second);
  size_t place = 0;
  while (place < a.size() && place < b.size() &&
         a[place].identity == b[place].identity) {
    ++place;
  }
  std::pair<std::string, std::string> texts = {Text(a, place), Text(b, place)};
  if (texts.first == texts.second && place < a.size() && place < b.size()) {
    texts.second = "another variable of the same name";
  }
  return texts;
}

void SourceTable::Note(int64_t number, std::vector<Source> sources) {
  const MutexLock lock(&mutex_);
  lists_[number] = List{std::move(sources), nullptr};
}

void SourceTable::Forget(int64_t number) {
  const MutexLock lock(&mutex_);
  lists_.erase(number);
  const auto of = [this](int64_t list) REQUIRES(mutex_) {
    return reductions_.lower_bound(
        {list, std::numeric_limits<int32_t>::min(), std::string()});
  };
  reductions_.erase(of(number), of(number + 1));
}

void SourceTable::ForgetVariable(int64_t variable) {
  const MutexLock lock(&mutex_);
  variables_.erase(variable);
}

std::shared_ptr<const SourceList> SourceTable::Find(int64_t number) {
  const MutexLock lock(&mutex_);
  const auto it = lists_.find(number);
  if (it == lists_.end()) return nullptr;
  if (it->second.known == nullptr) it->second.known = Describe(it->second);
  return it->second.known;
}

std::shared_ptr<const SourceList> SourceTable::Describe(
    const List& list) const {
  auto described = std::make_shared<SourceList>();
  uint64_t digest = list.sources.size();
  Writer out;
  for (const Source& source : list.sources) {
    const auto it = variables_.find(source.variable);
    const uint64_t identity =
        it != variables_.end() ? Fold(static_cast<uint64_t>(it->second.sent),
                                      static_cast<uint64_t>(it->second.place))
                               : Fold(0, static_cast<uint64_t>(source.place));
    digest = Fold(digest, identity);
    out.Put(static_cast<int64_t>(identity));
    out.PutText(source.name);
  }
  described->digest = static_cast<int64_t>(digest | 1);
  described->bytes = out.Take();
  return described;
}

int64_t SourceTable::BroadcastNumber(int64_t number) {
  const MutexLock lock(&mutex_);
  const auto list = lists_.find(number);
  int64_t before = 0;
  if (list != lists_.end()) {
    const std::vector<Source>& sources = list->second.sources;
    const auto sent_at_its_place = [&](const Source& source) REQUIRES(mutex_) {
      const auto it = variables_.find(source.variable);
      if (it == variables_.end()) return false;
      if (before == 0) before = it->second.sent;
      return it->second.sent == before && it->second.place == source.place;
    };
    if (!std::all_of(sources.begin(), sources.end(), sent_at_its_place)) {
      before = 0;
    }
  }
  return before != 0 ? before : NewNumber();
}

void SourceTable::Identify(int64_t number, int64_t sent) {
  const MutexLock lock(&mutex_);
  const auto list = lists_.find(number);
  if (list == lists_.end()) return;
  bool changed = false;
  for (const Source& source : list->second.sources) {
    if (source.variable == 0) continue;
    Identity& identity = variables_[source.variable];
    changed |= identity.sent != sent || identity.place != source.place;
    identity.sent = sent;
    identity.place = source.place;
  }
  if (!changed) return;
  for (auto& [unused, each] : lists_) each.known = nullptr;
}

int64_t SourceTable::CountReduction(int64_t number, const std::string& variable,
                                    int32_t set) {
  const MutexLock lock(&mutex_);
  return ++reductions_[{number, set, variable}];
}

void SourceTable::AfterJoin(int32_t set) {
  const MutexLock lock(&mutex_);
  for (auto it = reductions_.begin(); it != reductions_.end();) {
    it = std::get<1>(it->first) == set ? reductions_.erase(it) : std::next(it);
  }
}

void SourceTable::Restart() {
  const MutexLock lock(&mutex_);
  variables_.clear();
  reductions_.clear();
  for (auto& [unused, list] : lists_) list.known = nullptr;
}

SourceTable* TheSources() {
  static SourceTable* const table = new SourceTable;  // outlives all threads
  return table;
}

}  // namespace tf_hvd
