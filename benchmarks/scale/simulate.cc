// Reads a job from the standard input, a setting or a tensor in each line, and
// writes how it went as JSON. simulate_scale.py speaks to it.
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "benchmarks/scale/job.h"

namespace {

using tf_hvd::scale::GpuAlgorithm;
using tf_hvd::scale::Gradients;
using tf_hvd::scale::JobResult;
using tf_hvd::scale::JobSettings;
using tf_hvd::scale::Schedule;

using Read = std::function<bool(std::istream&)>;

template <typename T>
Read Number(T* to) {
  return [to](std::istream& line) { return static_cast<bool>(line >> *to); };
}

template <typename T>
Read Word(T* to, std::map<std::string, T> words) {
  return [to, words = std::move(words)](std::istream& line) {
    std::string word;
    line >> word;
    const auto found = words.find(word);
    if (found == words.end()) return false;
    *to = found->second;
    return true;
  };
}

// "gradients NAME READY_NS ELEMENTS..."
bool ReadGradients(std::istream& line, std::vector<Gradients>* all) {
  Gradients one;
  if (!(line >> one.name >> one.ready_ns)) return false;
  for (int64_t count = 0; line >> count;) one.tensors.push_back(count);
  all->push_back(std::move(one));
  return line.eof();
}

bool ReadJitter(std::istream& line, std::vector<double>* all) {
  for (double time = 0; line >> time;) all->push_back(time);
  return line.eof();
}

std::map<std::string, Read> Settings(JobSettings* job) {
  auto& network = job->network;
  auto& training = job->training;
  return {
      {"nodes", Number(&job->nodes)},
      {"ranks_per_node", Number(&job->ranks_per_node)},
      {"schedule",
       Word<Schedule>(&job->schedule, {{"host", Schedule::kHost},
                                       {"gpu", Schedule::kGpu},
                                       {"horovod", Schedule::kHorovod}})},
      {"algorithm",
       Word<GpuAlgorithm>(&job->algorithm, {{"ring", GpuAlgorithm::kRing},
                                            {"trees", GpuAlgorithm::kTrees}})},
      {"latency_ns", Number(&network.latency_ns)},
      {"byte_ns", Number(&network.byte_ns)},
      {"burst_bytes", Number(&network.burst_bytes)},
      {"inside_latency_ns", Number(&network.inside_latency_ns)},
      {"inside_byte_ns", Number(&network.inside_byte_ns)},
      {"message_ns", Number(&network.message_ns)},
      {"eager_bytes", Number(&network.eager_bytes)},
      {"launch_ns", Number(&job->pack.launch_ns)},
      {"pack_byte_ns", Number(&job->pack.byte_ns)},
      {"call_ns", Number(&job->core.call_ns)},
      {"copy_byte_ns", Number(&job->core.copy_byte_ns)},
      {"reduce_byte_ns", Number(&job->core.reduce_byte_ns)},
      {"turn_ns", Number(&job->loop.turn_ns)},
      {"line_ns", Number(&job->loop.line_ns)},
      {"wake_ns", Number(&job->loop.wake_ns)},
      {"submit_ns", Number(&job->loop.submit_ns)},
      {"spin_ns", Number(&job->config.spin_ns)},
      {"fusion_threshold", Number(&job->config.fusion_threshold)},
      {"cycle_ns", Number(&job->horovod.cycle_ns)},
      {"fusion_bytes", Number(&job->horovod.fusion_bytes)},
      {"compute_ns", Number(&training.compute_ns)},
      {"update_ns", Number(&training.update_ns)},
      {"jitter_scale", Number(&training.jitter_scale)},
      {"jitter_delay", Number(&training.jitter_delay)},
      {"seed", Number(&training.seed)},
      {"steps", Number(&training.steps)},
      {"warmup", Number(&training.warmup)},
      {"jitter",
       [&](std::istream& line) { return ReadJitter(line, &training.jitter); }},
      {"gradients",
       [&](std::istream& line) {
         return ReadGradients(line, &training.gradients);
       }},
  };
}

bool ReadJob(std::istream& input, JobSettings* job) {
  const std::map<std::string, Read> settings = Settings(job);
  for (std::string text; std::getline(input, text);) {
    std::istringstream line(text);
    std::string name;
    line >> name;
    const auto found = settings.find(name);
    if (found == settings.end() || !found->second(line)) {
      std::cerr << "simulate: '" << text.substr(0, 100) << "' is no setting\n";
      return false;
    }
  }
  return true;
}

void Write(const JobResult& result) {
  std::printf("{\"steps_ns\": [");
  const char* between = "";
  for (const double step : result.steps_ns) {
    std::printf("%s%.0f", between, step);
    between = ", ";
  }
  std::printf(
      "], \"agreement_messages\": %llu, \"agreement_bytes\": %.0f, "
      "\"data_messages\": %llu, \"data_bytes\": %.0f, \"events\": %llu}\n",
      static_cast<unsigned long long>(result.agreement_messages),
      result.agreement_bytes,
      static_cast<unsigned long long>(result.data_messages), result.data_bytes,
      static_cast<unsigned long long>(result.events));
}

}  // namespace

int main() {
  JobSettings job;
  if (!ReadJob(std::cin, &job)) return 2;
  Write(tf_hvd::scale::RunJob(job));
}
