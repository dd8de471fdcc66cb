#include "train/step/set_masks.h"

#include "base/bits/bit_mask.h"
#include "base/bits/kept_bits.h"

namespace lockstep::train {

std::vector<uint8_t> kept_bits_of(const FlatBuffer& buffer, const recal::MaskTable& masks) {
  std::vector<uint8_t> bits;
  for (const FlatSlice& slice : buffer.slices) {
    if (!masks.covers(slice.param)) continue;
    const recal::Mask& mask = masks.of(slice.param);
    // Empty bits mean "all kept", which costs nothing later.
    if (mask.num_pruned == 0) continue;
    if (bits.empty()) {
      const int64_t num_elements = buffer.values_E.numel();
      bits.resize(static_cast<size_t>(num_mask_bytes(num_elements)));
      keep_all(bits.data(), num_elements);
    }
    copy_bits(mask.kept_bits.const_data_ptr<uint8_t>(), 0, slice.num_elements, bits.data(),
              slice.offset_E);
  }
  return bits;
}

void tell_layers(const recal::MaskTable& masks, const ParamTable& params) {
  for (size_t i = 0; i < params.size(); ++i) {
    if (!params[i].follow_mask) continue;
    const auto param = static_cast<int64_t>(i);
    const bool is_pruned = masks.covers(param) && masks.of(param).num_pruned > 0;
    params[i].follow_mask(is_pruned ? masks.of(param).kept_bits.const_data_ptr<uint8_t>()
                                    : nullptr);
  }
}

void set_masks(const recal::MaskTable& masks, const std::vector<FlatBuffer>& buffers,
               bool adds_squares, dist::GradientReducer& reducer, optim::Optimizer& optimizer) {
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].frozen) continue;
    const std::vector<uint8_t> bits = kept_bits_of(buffers[i], masks);
    optimizer.set_kept(i, bits);
    // The optimizer may read all gradients, and a norm reads all: then dropped ones must be 0.
    const bool needs_zeros = adds_squares || !optimizer.reads_kept_alone(i);
    reducer.set_kept(i, bits, needs_zeros ? dist::Dropped::kZero : dist::Dropped::kAnything);
  }
}

}  // namespace lockstep::train
