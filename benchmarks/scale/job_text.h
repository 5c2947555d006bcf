// A job as text, a setting in each line: its name, and what it is set to. Empty
// lines say nothing. "gradients NAME READY_NS ELEMENTS...", in any number of
// lines, is what is summed together, and when it is there; without elements it
// is a barrier. "jitter TIMES..." are times of a step by their mean.
//
// What a schedule has no use for is accepted and ignored. Only horovod looks at
// cycle_ns and fusion_bytes, but not at what the loop of a rank costs (turn_ns,
// line_ns, wake_ns, submit_ns, spin_ns), fusion_threshold, and burst_bytes.
// Only host looks at call_ns, copy_byte_ns, reduce_byte_ns and eager_bytes, but
// not at algorithm, launch_ns and pack_byte_ns.
#ifndef TF_HVD_BENCHMARKS_SCALE_JOB_TEXT_H_
#define TF_HVD_BENCHMARKS_SCALE_JOB_TEXT_H_

#include <istream>
#include <string>

#include "benchmarks/scale/job.h"

namespace tf_hvd::scale {

// Reads all of it. False: `error` says in one line what is wrong, and where.
bool ReadJob(std::istream& input, JobSettings* job, std::string* error);

// How a job went, as one line of JSON: its steps, and of this project's
// schedules what was sent between nodes.
std::string ToJson(const JobSettings& job, const JobResult& result);

}  // namespace tf_hvd::scale

#endif  // TF_HVD_BENCHMARKS_SCALE_JOB_TEXT_H_
