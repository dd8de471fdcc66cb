#include "base/simd/avx2.h"
#include "model/linear/kept_products_loops.h"
#include "model/linear/kept_weight.h"

namespace lockstep::model {

#if defined(__x86_64__)

namespace {

LOCKSTEP_KEPT_PRODUCTS(LOCKSTEP_AVX2)

}  // namespace

const KeptProducts& avx2_kept_products() { return kKernels; }

#else

const KeptProducts& avx2_kept_products() { return portable_kept_products(); }

#endif

}  // namespace lockstep::model
