// Reads a job from the standard input, as job_text.h has it, and writes how it
// went as JSON. simulate_scale.py speaks to it.
#include <iostream>
#include <string>

#include "benchmarks/scale/job.h"
#include "benchmarks/scale/job_text.h"

int main() {
  tf_hvd::scale::JobSettings job;
  std::string error;
  if (!tf_hvd::scale::ReadJob(std::cin, &job, &error)) {
    std::cerr << "simulate: " << error << "\n";
    return 2;
  }
  std::cout << ToJson(job, tf_hvd::scale::RunJob(job)) << "\n";
}
