#include "optim/kernels/update_kernels.h"

#include "base/bits/bit_mask_kernels.h"
#include "optim/kernels/update_loops.h"

namespace lockstep::optim {
namespace {

#define LOCKSTEP_ANY
LOCKSTEP_UPDATES(LOCKSTEP_ANY)

int64_t pack(const float* values, const float* grads, const uint8_t* bits, int64_t num_elements,
             float* values_K, float* grads_K) {
  const auto pack_kept = portable_bit_mask_kernels<uint32_t>().pack_kept;
  (void)pack_kept(values, bits, num_elements, values_K);
  return pack_kept(grads, bits, num_elements, grads_K);
}

void put_kept(const float* packed_K, const uint8_t* bits, int64_t num_elements, float* values) {
  loops::put_kept(packed_K, bits, num_elements, values);
}

}  // namespace

const UpdateKernels& portable_update_kernels() {
  static constexpr UpdateKernels kKernels{pack, put_kept, follow, rules::OfAll<Updates>::kAll};
  return kKernels;
}

const UpdateKernels& update_kernels(SimdPath path) {
  if (path == SimdPath::kAvx512) return avx512_update_kernels();
  return path == SimdPath::kAvx2 ? avx2_update_kernels() : portable_update_kernels();
}

}  // namespace lockstep::optim
