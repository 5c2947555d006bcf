#include "runtime/transport/p2p/scatter.h"

namespace tf_hvd {
void ExchangeAll(const RankGroup& group, const char* input,
                 const std::vector<size_t>& send_offsets, char* output,
                 const std::vector<size_t>& receive_offsets, P2PPlan* plan) {
  constexpr size_t kAll = 0;
  const auto size_at = [](const std::vector<size_t>& offsets, size_t place) {
    return offsets[place + 1] - offsets[place];
  };
  // Each rank starts with a different one, so that no rank is the first for
  // all.
  for (size_t step = 1; step < group.size(); ++step) {
    const size_t from = group.Previous(step);
    plan->Receive(kAll, group.ranks[from], output + receive_offsets[from],
                  size_at(receive_offsets, from));
  }
  for (size_t step = 1; step < group.size(); ++step) {
    const size_t to = group.Next(step);
    plan->Send(kAll, group.ranks[to], input + send_offsets[to],
               size_at(send_offsets, to));
  }
  plan->Copy(output + receive_offsets[group.me], input + send_offsets[group.me],
             size_at(send_offsets, group.me));
  plan->Wait(kAll);
}

}  // namespace tf_hvd
