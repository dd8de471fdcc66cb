#include "optim/rules.h"

#include "optim/update_loops.h"

namespace lockstep::optim {
// The loops compiled without special instructions. LOCKSTEP_ANY is the empty attribute.
namespace {

#define LOCKSTEP_ANY
LOCKSTEP_UPDATES(LOCKSTEP_ANY)

void pack(const float* values, const float* grads, const uint8_t* bits, int64_t num_elements,
          PackedBlock& block) {
  block.num_kept =
      loops::pack_rest(values, grads, bits, num_elements, block.values.data(), block.grads.data());
}

void put_kept(const PackedBlock& block, const uint8_t* bits, int64_t num_elements, float* dense) {
  loops::put_kept(block.values.data(), bits, num_elements, dense);
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
