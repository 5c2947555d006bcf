#include "runtime/contract/rank_group.h"

#include <algorithm>
#include <string>

namespace tf_hvd {

Status FindPlace(const OperationSpec& spec, int rank, size_t* place) {
  const std::vector<int>& ranks = *spec.ranks;
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  if (found == ranks.end()) {
    return Internal(
        "bug in tf_hvd: rank " + std::to_string(rank) +
        " takes part in an operation but is not in its process set");
  }
  if (Has(spec.kind, kHasRoot) && spec.root >= ranks.size()) {
    return Internal(std::string("bug in tf_hvd: ") + NameOf(spec.kind) +
                    " with a root that is not in the process set");
  }
  *place = static_cast<size_t>(found - ranks.begin());
  return Status::Ok();
}

}  // namespace tf_hvd
