#include "optim/update_kernels.h"

#include "base/bits/bit_mask_kernels.h"

namespace lockstep::optim {
namespace {

#define LOCKSTEP_ANY
LOCKSTEP_UPDATE_KERNELS(LOCKSTEP_ANY)

int64_t pack(const float* values, const uint8_t* bits, int64_t num_elements, float* packed_K) {
  return portable_bit_mask_kernels<uint32_t>().pack_kept(values, bits, num_elements, packed_K);
}

void add_kept(const float* changes_K, const uint8_t* bits, int64_t num_elements, float factor,
              float* values) {
  math::add_kept(changes_K, bits, num_elements, factor, values);
}

}  // namespace

const UpdateKernels& portable_update_kernels() {
  static constexpr UpdateKernels kKernels{pack, adam_of_path, momentum_of_path, add_kept};
  return kKernels;
}

const UpdateKernels& update_kernels(SimdPath path) {
  if (path == SimdPath::kAvx512) return avx512_update_kernels();
  return path == SimdPath::kAvx2 ? avx2_update_kernels() : portable_update_kernels();
}

}  // namespace lockstep::optim
