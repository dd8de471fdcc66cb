#include "base/tensors/params.h"

#include <algorithm>

namespace lockstep {

// Parameters have dots, checkpoint keys have slashes.
std::string slashed(std::string dotted_name) {
  std::replace(dotted_name.begin(), dotted_name.end(), '.', '/');
  return dotted_name;
}

}  // namespace lockstep
