#include "model/linear/kept_products_loops.h"
#include "model/linear/kept_weight.h"

namespace lockstep::model {
namespace {

#define LOCKSTEP_ANY
LOCKSTEP_KEPT_PRODUCTS(LOCKSTEP_ANY)

}  // namespace

const KeptProducts& portable_kept_products() { return kKernels; }

const KeptProducts& kept_products(SimdPath path) {
  return path == SimdPath::kPortable ? portable_kept_products() : avx2_kept_products();
}

}  // namespace lockstep::model
