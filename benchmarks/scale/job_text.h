// A job as text: each line has a setting's name and its value. Empty lines are
// ignored. "gradients NAME READY_NS ELEMENTS...", in any number of lines, lists
// tensors that are summed together and the time when they are ready; without
// elements it is a barrier. "jitter TIMES..." lists times of a step divided by
// their mean.
//
// Settings that a schedule does not use are accepted and ignored. Only horovod
// uses cycle_ns and fusion_bytes; it ignores the loop costs of a rank (turn_ns,
// line_ns, wake_ns, submit_ns, spin_ns), fusion_threshold, and burst_bytes.
// Only host uses call_ns, copy_byte_ns, reduce_byte_ns and eager_bytes; it
// ignores algorithm, launch_ns and pack_byte_ns.
#ifndef TF_HVD_BENCHMARKS_SCALE_JOB_TEXT_H_
#define TF_HVD_BENCHMARKS_SCALE_JOB_TEXT_H_

#include <istream>
#include <string>

#include "benchmarks/scale/job.h"

namespace tf_hvd::scale {

// Reads all of it. On failure returns false and sets `error` to one line with
// the line and the reason.
bool ReadJob(std::istream& input, JobSettings* job, std::string* error);

// A job's result as one line of JSON: its steps and, for this project's
// schedules, the messages and bytes sent between nodes.
std::string ToJson(const JobSettings& job, const JobResult& result);

}  // namespace tf_hvd::scale

#endif  // TF_HVD_BENCHMARKS_SCALE_JOB_TEXT_H_
