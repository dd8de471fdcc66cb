// Pruning against LibTorch's own operations, on 20 M float32 weights and one thread:
// bench/prune_ops
//
// Each line is a pair of operations with equal results (checked first), timed in turn. Buffers
// exist and are touched before; medians over the pairs, in processor time of the one thread.
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/simd/bit_mask.h"
#include "base/simd/simd.h"
#include "bench/programs/pairs.h"
#include "dist/communicator.h"
#include "dist/tensor_math.h"
#include "recal/masks/magnitude_threshold.h"
#include "recal/masks/mask_table.h"

namespace lockstep::bench {
namespace {

constexpr int64_t kNumWeights = 20'000'000;
constexpr int64_t kNumLayers = 5;
constexpr int64_t kNumInputs = 2'000;
constexpr double kSparsity = 0.9;
constexpr double kUpdateGoal_ms = 80;

int64_t num_smallest() { return recal::num_to_prune(kSparsity, kNumWeights); }

/// 20 M weights, and a mask of 90 % in the three forms that the contests need.
struct Weights {
  at::Tensor original = at::randn({kNumWeights});
  at::Tensor magnitudes = original.abs();
  at::Tensor values = original.clone();
  at::Tensor kept_floats, kept_bools;
  std::vector<uint8_t> kept_bits = std::vector<uint8_t>(kNumWeights / 8);

  Weights() {
    const float limit = std::get<0>(at::kthvalue(magnitudes, num_smallest())).item<float>();
    kept_bools = magnitudes.gt(limit);
    kept_floats = kept_bools.to(at::kFloat);
    keep_nonzero(kept_floats.const_data_ptr(), kNumWeights, 4, kept_bits.data());
  }
};

float our_threshold(const Weights& weights, std::vector<uint8_t>* all_kept) {
  const std::vector<recal::MagnitudePart<uint32_t>> parts{
      {static_cast<const uint32_t*>(weights.original.const_data_ptr()), all_kept->data(),
       kNumWeights}};
  const uint32_t limit = recal::find_threshold<uint32_t>(std::span(parts), num_smallest()).limit;
  float value = 0;
  std::memcpy(&value, &limit, sizeof(value));
  return value;
}

void time_thresholds(const Weights& weights) {
  std::vector<uint8_t> all_kept(kNumWeights / 8, 0xff);
  float ours = 0;
  float theirs = 0;
  Contest contest{"threshold at 90 %", "kthvalue", 10, {}, {}, {}, 7};
  contest.ours = [&] { ours = our_threshold(weights, &all_kept); };
  contest.theirs = [&] {
    theirs = std::get<0>(at::kthvalue(weights.magnitudes, num_smallest())).item<float>();
  };
  Outcome outcome = run(contest);
  check(ours == theirs, "the threshold is not kthvalue's");
  print(contest, outcome);
  contest.peer = "topk of the kept";
  contest.theirs = [&] { at::topk(weights.magnitudes, kNumWeights - num_smallest()); };
  print(contest, run(contest));
}

/// Weights that moved since: what an optimizer does that does not know the mask.
void time_apply(Weights* weights) {
  Contest contest{"apply, all weights moved", "mul_ by floats", 1.5};
  contest.prepare = [&] { weights->values.copy_(weights->original); };
  contest.ours = [&] {
    zero_pruned(weights->values.mutable_data_ptr(), weights->kept_bits.data(), kNumWeights, 4);
  };
  contest.ours();
  check(at::equal(weights->values, weights->original.mul(weights->kept_floats)),
        "applying bits is not multiplying by the mask");
  contest.theirs = [&] { weights->values.mul_(weights->kept_floats); };
  print(contest, run(contest));
  contest.peer = "mul_ by bools";
  contest.goal_ratio = 4;
  contest.theirs = [&] { weights->values.mul_(weights->kept_bools); };
  print(contest, run(contest));
  contest = {"apply, pruned stayed zero", "mul_ by floats", 1.5, {}, contest.ours, {}};
  contest.theirs = [&] { weights->values.mul_(weights->kept_floats); };
  print(contest, run(contest));
}

void time_pack(const Weights& weights) {
  const at::Tensor packed = at::zeros({kNumWeights - num_smallest()});
  const at::Tensor unpacked = at::zeros({kNumWeights});
  at::Tensor selected = at::zeros_like(packed);  // room for all, as ours has
  Contest contest{"pack the kept", "masked_select(out=)", 5};
  contest.ours = [&] {
    pack_kept(weights.original.const_data_ptr(), weights.kept_bits.data(), kNumWeights, 4,
              packed.mutable_data_ptr());
  };
  contest.theirs = [&] { at::masked_select_out(selected, weights.original, weights.kept_bools); };
  const Outcome outcome = run(contest);
  check(at::equal(packed, selected), "packing is not masked_select");
  print(contest, outcome);
  contest = {"unpack, zeros elsewhere", "masked_scatter_"};
  contest.ours = [&] {
    unpack_kept(packed.const_data_ptr(), weights.kept_bits.data(), kNumWeights, 4,
                unpacked.mutable_data_ptr());
  };
  contest.theirs = [&] { unpacked.zero_().masked_scatter_(weights.kept_bools, packed); };
  print(contest, run(contest));
}

ParamTable layers_of(const at::Tensor& values) {
  ParamTable params;
  for (int64_t layer = 0; layer < kNumLayers; ++layer)
    params.push_back({fmt::format("layer{}.weight", layer),
                      values.view({kNumLayers, -1, kNumInputs})[layer], true, true});
  return params;
}

/// New masks of all layers from weights that were never pruned, the proof, and the weights zeroed.
double update_ms(Weights* weights, const recal::MaskRule& rule, double sparsity) {
  const ParamTable params = layers_of(weights->values);
  const std::vector<int64_t> all{0, 1, 2, 3, 4};
  recal::MaskTable masks(params, all);
  dist::SelfCommunicator self;
  return median_ms(
      7,
      [&] {
        weights->values.copy_(weights->original);
        for (const int64_t param : all) masks.release(param);
      },
      [&] {
        masks.prune(all, sparsity, rule, self);
        masks.require_equal("the new mask", all, self);
        masks.enforce();
      });
}

void print_update(const std::string& what, double ms, bool with_goal) {
  fmt::print("{:<32}{:>8.2f} ms   {:.2f} ns a weight", what, ms,
             1e6 * ms / static_cast<double>(kNumWeights));
  if (with_goal) fmt::print("  goal < {} ms: {}", kUpdateGoal_ms, met(ms < kUpdateGoal_ms));
  fmt::print("\n");
}

void time_updates(Weights* weights) {
  print_update("mask update, 5 layers, 90 %", update_ms(weights, {}, kSparsity), true);
  print_update("  one threshold over all", update_ms(weights, {{}, true}, kSparsity), false);
  for (const std::string text : {"block4", "2:4", "2:4 transposable", "filter", "channel"}) {
    const double sparsity = text.starts_with("2:4") ? 0.5 : kSparsity;
    print_update(fmt::format("  mask_type {}, {:.0f} %", text, 100 * sparsity),
                 update_ms(weights, {recal::MaskKind::parse(text).value(), false}, sparsity),
                 false);
  }
}

void time_digest(const Weights& weights) {
  const ParamTable params = layers_of(weights.original);
  int64_t digest = 0;
  const double ms = median_ms(9, {}, [&] {
    for (const Param& param : params) digest ^= dist::tensor_digest(param.tensor);
  });
  fmt::print(
      "{:<32}{:>8.2f} ms   {:.1f} GB/s (agreement of all weights, every replica_check_every "
      "steps)\n",
      "digest of 20 M parameters", ms, 4e-6 * static_cast<double>(kNumWeights) / ms);
}

std::string load_average() {
  std::string load = "?";
  std::ifstream("/proc/loadavg") >> load;
  return load;
}

void run_all() {
  at::set_num_threads(1);
  at::manual_seed(1);
  const c10::InferenceMode no_autograd;
  fmt::print("{} M float32 weights, 1 thread, {} path, load {}\n", kNumWeights / 1'000'000,
             name_of(fastest_simd_path()), load_average());
  Weights weights;
  time_thresholds(weights);
  time_apply(&weights);
  time_pack(weights);
  time_updates(&weights);
  time_digest(weights);
  fmt::print("load {} after\n", load_average());
}

}  // namespace
}  // namespace lockstep::bench

int main() { return lockstep::bench::exit_code_of(lockstep::bench::run_all); }
