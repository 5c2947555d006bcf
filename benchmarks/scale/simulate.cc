// Reads a job from standard input in the format of job_text.h, and writes its
// result as JSON. Used by simulate_scale.py.
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
