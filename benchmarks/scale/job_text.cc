#include "benchmarks/scale/job_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

namespace tf_hvd::scale {
namespace {

using Words = std::vector<std::string>;
// Reads a setting's value; returns a description of valid values on failure.
using Read = std::function<std::optional<std::string>(const Words&)>;

constexpr int kMostRanks = 100'000;
constexpr double kMostNs = 1e15;     // eleven days
constexpr double kMostByteNs = 1e6;  // a kilobyte in a second
constexpr int64_t kMostElements = int64_t{1} << 32;
constexpr double kMostBytes = 1e13;

// Reads a whole word. Numbers must be finite.
template <typename T>
bool Parse(const std::string& word, T* to) {
  const char* const end = word.data() + word.size();
  const auto [stopped, error] = std::from_chars(word.data(), end, *to);
  if (error != std::errc() || stopped != end) return false;
  if constexpr (std::is_floating_point_v<T>) return std::isfinite(*to);
  return true;
}

template <typename T>
bool ParseWithin(const std::string& word, T least, T most, T* to) {
  T number{};
  if (!Parse(word, &number) || number < least || number > most) return false;
  *to = number;
  return true;
}

template <typename T>
std::string Within(T least, T most) {
  std::ostringstream text;
  text << (std::is_integral_v<T> ? "a whole number" : "a number") << " from "
       << least << " to " << most;
  return text.str();
}

template <typename T>
Read Number(T* to, T least, T most) {
  return [=](const Words& words) -> std::optional<std::string> {
    if (words.size() == 1 && ParseWithin(words[0], least, most, to)) return {};
    return Within(least, most);
  };
}

Read Ns(double* to) { return Number(to, 0.0, kMostNs); }
Read NsOfByte(double* to) { return Number(to, 0.0, kMostByteNs); }
Read Bytes(double* to) { return Number(to, 0.0, kMostBytes); }

template <typename T>
Read Word(T* to, std::map<std::string, T> known) {
  return [=](const Words& words) -> std::optional<std::string> {
    const auto found = words.size() == 1 ? known.find(words[0]) : known.end();
    if (found != known.end()) {
      *to = found->second;
      return {};
    }
    std::string one_of = "one of";
    for (const auto& [word, value] : known) one_of += " " + word;
    return one_of;
  };
}

Read GradientsOf(std::vector<Gradients>* all) {
  return [all](const Words& words) -> std::optional<std::string> {
    Gradients one;
    if (words.size() < 2 || !ParseWithin(words[1], 0.0, kMostNs, &one.ready_ns))
      return "a name and the time when they are ready: " + Within(0.0, kMostNs);
    one.name = words[0];
    for (const Gradients& other : *all) {
      if (other.name == one.name) return "a name that is not used yet";
    }
    for (size_t i = 2; i < words.size(); ++i) {
      int64_t count = 0;
      if (!ParseWithin(words[i], int64_t{1}, kMostElements, &count))
        return "elements: " + Within(int64_t{1}, kMostElements);
      one.tensors.push_back(count);
    }
    all->push_back(std::move(one));
    return {};
  };
}

Read Times(std::vector<double>* all) {
  return [all](const Words& words) -> std::optional<std::string> {
    for (const std::string& word : words) {
      if (!ParseWithin(word, 0.0, 100.0, &all->emplace_back()))
        return "times: " + Within(0.0, 100.0);
    }
    if (all->empty()) return "times";
    return {};
  };
}

using Settings = std::map<std::string, Read>;

void AddCosts(JobSettings* job, Settings* to) {
  NetworkCosts& network = job->network;
  to->insert({
      {"latency_ns", Ns(&network.latency_ns)},
      {"byte_ns", NsOfByte(&network.byte_ns)},
      {"burst_bytes", Bytes(&network.burst_bytes)},
      {"inside_latency_ns", Ns(&network.inside_latency_ns)},
      {"inside_byte_ns", NsOfByte(&network.inside_byte_ns)},
      {"message_ns", Ns(&network.message_ns)},
      {"eager_bytes", Bytes(&network.eager_bytes)},
      {"launch_ns", Ns(&job->pack.launch_ns)},
      {"pack_byte_ns", NsOfByte(&job->pack.byte_ns)},
      {"call_ns", Ns(&job->core.call_ns)},
      {"copy_byte_ns", NsOfByte(&job->core.copy_byte_ns)},
      {"reduce_byte_ns", NsOfByte(&job->core.reduce_byte_ns)},
      // Every turn, and every cycle of Horovod's, must take time.
      {"turn_ns", Number(&job->loop.turn_ns, 1.0, kMostNs)},
      {"cycle_ns", Number(&job->horovod.cycle_ns, 1000.0, kMostNs)},
      {"line_ns", Ns(&job->loop.line_ns)},
      {"wake_ns", Ns(&job->loop.wake_ns)},
      {"submit_ns", Ns(&job->loop.submit_ns)},
      {"spin_ns",
       Number(&job->config.spin_ns, int64_t{0}, static_cast<int64_t>(kMostNs))},
  });
}

Settings SettingsOf(JobSettings* job) {
  TrainingSettings& training = job->training;
  Settings settings = {
      {"nodes", Number(&job->nodes, 1, kMostRanks)},
      {"ranks_per_node", Number(&job->ranks_per_node, 1, 256)},
      {"schedule",
       Word<Schedule>(&job->schedule, {{"host", Schedule::kHost},
                                       {"gpu", Schedule::kGpu},
                                       {"horovod", Schedule::kHorovod}})},
      {"algorithm",
       Word<GpuAlgorithm>(&job->algorithm, {{"ring", GpuAlgorithm::kRing},
                                            {"trees", GpuAlgorithm::kTrees}})},
      {"fusion_threshold", Number(&job->config.fusion_threshold, int64_t{0},
                                  static_cast<int64_t>(kMostBytes))},
      {"fusion_bytes", Bytes(&job->horovod.fusion_bytes)},
      {"compute_ns", Ns(&training.compute_ns)},
      {"update_ns", Ns(&training.update_ns)},
      {"jitter_scale", Number(&training.jitter_scale, 0.0, 1000.0)},
      {"jitter_delay", Number(&training.jitter_delay, 0.0, 1.0)},
      {"seed", Number(&training.seed, uint64_t{0},
                      std::numeric_limits<uint64_t>::max())},
      {"steps", Number(&training.steps, 1, 1'000'000)},
      {"warmup", Number(&training.warmup, 0, 1'000'000)},
      {"jitter", Times(&training.jitter)},
      {"gradients", GradientsOf(&training.gradients)},
  };
  AddCosts(job, &settings);
  return settings;
}

// Errors of settings in combination.
std::optional<std::string> FaultOf(const JobSettings& job) {
  if (int64_t{job.nodes} * job.ranks_per_node > kMostRanks) {
    return "more than " + std::to_string(kMostRanks) + " ranks";
  }
  const std::vector<double>& jitter = job.training.jitter;
  if (jitter.empty()) return {};
  const double least = *std::min_element(jitter.begin(), jitter.end());
  if (1 + job.training.jitter_scale * (least - 1) < 0) {
    return "jitter_scale is too large: steps would have negative times";
  }
  return {};
}

Words WordsOf(const std::string& line) {
  std::istringstream text(line);
  Words words;
  for (std::string word; text >> word;) words.push_back(word);
  return words;
}

// Returns the error of a line.
std::optional<std::string> Take(const Settings& settings, Words words,
                                std::set<std::string>* seen) {
  const std::string name = words[0];
  const auto found = settings.find(name);
  if (found == settings.end()) return "unknown setting";
  if (!seen->insert(name).second && name != "gradients") return "set twice";
  words.erase(words.begin());
  if (const auto wanted = found->second(words)) {
    return "bad value, it takes " + *wanted;
  }
  return {};
}

}  // namespace

bool ReadJob(std::istream& input, JobSettings* job, std::string* error) {
  const Settings settings = SettingsOf(job);
  std::set<std::string> seen;
  int number = 0;
  for (std::string line; std::getline(input, line);) {
    ++number;
    Words words = WordsOf(line);
    if (words.empty()) continue;
    if (const auto fault = Take(settings, std::move(words), &seen)) {
      *error = "line " + std::to_string(number) + ", '" + line.substr(0, 80) +
               "': " + *fault;
      return false;
    }
  }
  const auto fault = FaultOf(*job);
  if (fault) *error = *fault;
  return !fault.has_value();
}

std::string ToJson(const JobSettings& job, const JobResult& result) {
  std::ostringstream text;
  text << std::fixed;
  text.precision(0);
  text << "{\"steps_ns\": [";
  const char* between = "";
  for (const double step : result.steps_ns) {
    text << between << step;
    between = ", ";
  }
  text << "]";
  if (job.schedule != Schedule::kHorovod) {
    text << ", \"agreement_messages\": " << result.agreement_messages
         << ", \"agreement_bytes\": " << result.agreement_bytes;
  }
  if (job.schedule == Schedule::kHost) {
    text << ", \"data_messages\": " << result.data_messages
         << ", \"data_bytes\": " << result.data_bytes;
  }
  text << ", \"events\": " << result.events << "}";
  return text.str();
}

}  // namespace tf_hvd::scale
