#include "base/bits/avx2.h"
#include "model/products/kept_products.h"
#include "model/products/kept_products_loops.h"

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
