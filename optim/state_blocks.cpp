#include "optim/state_blocks.h"

#include <algorithm>

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "base/tensors/square_sums.h"
#include "base/tensors/tensor_memory.h"
#include "optim/rules.h"

namespace lockstep::optim {

static_assert(kCutElements % kStateBlock == 0, "long rows are divided between blocks");

void choose_blocks(const OptimizerOptions& options, ParamTable* params) {
  for (Param& param : *params) param.block_E = options.state_dtype == "int8" ? kStateBlock : 1;
}

StateBlocks::StateBlocks(const FlatBuffer& buffer, const std::vector<int64_t>& rows_E) {
  int64_t num_blocks = 0;
  const auto add = [&](int64_t begin_E, int64_t end_E, int64_t row_E) {
    if (begin_E == end_E) return;
    Run run{begin_E, end_E, whole_rows(row_E, kStateBlock), num_blocks};
    const int64_t whole_units = (end_E - begin_E) / run.unit_E;
    const int64_t rest_E = (end_E - begin_E) % run.unit_E;
    num_blocks += whole_units * run.blocks_a_unit() + (rest_E + kStateBlock - 1) / kStateBlock;
    runs_.push_back(run);
  };
  if (buffer.slices.empty()) add(0, buffer.values_E.numel(), 1);
  for (const FlatSlice& slice : buffer.slices)
    add(slice.offset_E, slice.offset_E + slice.num_elements,
        rows_E.at(static_cast<size_t>(slice.param)));
}

StateBlocks::Block StateBlocks::at(int64_t index) const {
  const Run& run = *std::prev(std::ranges::upper_bound(runs_, index, {}, &Run::first_block));
  const int64_t unit = (index - run.first_block) / run.blocks_a_unit();
  const int64_t in_unit_E = (index - run.first_block) % run.blocks_a_unit() * kStateBlock;
  const int64_t begin_E = run.begin_E + unit * run.unit_E + in_unit_E;
  return {begin_E, std::min({kStateBlock, run.unit_E - in_unit_E, run.end_E - begin_E})};
}

int64_t StateBlocks::before(int64_t at_E) const {
  const auto behind = std::ranges::upper_bound(runs_, at_E, {}, &Run::begin_E);
  if (behind == runs_.begin()) return 0;
  const Run& run = *std::prev(behind);
  const int64_t in_run_E = std::min(at_E, run.end_E) - run.begin_E;
  const int64_t in_unit_E = in_run_E % run.unit_E;
  check(in_unit_E % kStateBlock == 0 || at_E >= run.end_E,
        "a region of 8-bit moments ends between blocks");
  return run.first_block + in_run_E / run.unit_E * run.blocks_a_unit() +
         (in_unit_E + kStateBlock - 1) / kStateBlock;
}

QuantizedSlot zero_slot(const StateBlocks& blocks, const ParamShard& region) {
  const int64_t num_blocks = blocks.before(region.end_E) - blocks.before(region.begin_E);
  return {zeros_on_large_pages(region.num_elements(), at::kByte),
          at::zeros({num_blocks}, at::kFloat)};
}

/// Calls act(begin_R, num_elements, block) for the blocks of a region, on several threads.
template <typename Act>
static void for_each_block(const StateBlocks& blocks, const ParamShard& region, const Act& act) {
  const int64_t first = blocks.before(region.begin_E);
  at::parallel_for(0, blocks.before(region.end_E) - first, kGrain / kStateBlock,
                   [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end; ++i) {
                       const StateBlocks::Block block = blocks.at(first + i);
                       act(block.begin_E - region.begin_E, block.num_elements, i);
                     }
                   });
}

void quantize(const StateBlocks& blocks, const ParamShard& region, bool is_positive,
              const at::Tensor& values_R, const QuantizedSlot& slot) {
  const UpdateKernels& kernels = update_kernels(fastest_simd_path());
  const auto* const values = values_R.const_data_ptr<float>();
  auto* const codes = slot.codes_R.mutable_data_ptr<uint8_t>();
  auto* const scales = slot.scales_B.mutable_data_ptr<float>();
  for_each_block(blocks, region, [&](int64_t begin, int64_t num, int64_t block) {
    scales[block] = kernels.quantize(num, values + begin, is_positive, codes + begin);
  });
}

void dequantize(const StateBlocks& blocks, const ParamShard& region, bool is_positive,
                const QuantizedSlot& slot, const at::Tensor& values_R) {
  const UpdateKernels& kernels = update_kernels(fastest_simd_path());
  auto* const values = values_R.mutable_data_ptr<float>();
  const auto* const codes = slot.codes_R.const_data_ptr<uint8_t>();
  const auto* const scales = slot.scales_B.const_data_ptr<float>();
  for_each_block(blocks, region, [&](int64_t begin, int64_t num, int64_t block) {
    kernels.dequantize(num, codes + begin, scales[block], is_positive, values + begin);
  });
}

}  // namespace lockstep::optim
