#include "model/dropout.h"

#include <algorithm>
#include <cmath>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>

#include "base/digest.h"
#include "base/error.h"

namespace lockstep::model {
// Two implementations of one random mask. Both must follow CounterRandom bit by bit: runs on CPUs
// and on GPUs drop the same elements.
namespace {

constexpr int64_t kNumbersOfAWord = 4;  // 16 bits each

int64_t words_of(int64_t num_numbers) {
  return (num_numbers + kNumbersOfAWord - 1) / kNumbersOfAWord;
}

void draw_sample(const MaskDraw& draw, uint64_t first_word, int64_t num_numbers, float* values_N) {
  const auto num_kept = static_cast<uint64_t>(draw.num_kept);
  const auto value_of = [&](uint64_t bits, int64_t place) {
    return ((bits >> (16 * place)) & 0xffffU) < num_kept ? draw.kept_value : 0.0F;
  };
  const int64_t num_whole = num_numbers / kNumbersOfAWord;
  for (int64_t word = 0; word < num_whole; ++word) {
    const uint64_t bits = draw.random.bits(first_word + static_cast<uint64_t>(word));
    float* values = values_N + word * kNumbersOfAWord;
    for (int64_t place = 0; place < kNumbersOfAWord; ++place) values[place] = value_of(bits, place);
  }
  const uint64_t rest = draw.random.bits(first_word + static_cast<uint64_t>(num_whole));
  for (int64_t n = num_whole * kNumbersOfAWord; n < num_numbers; ++n)
    values_N[n] = value_of(rest, n % kNumbersOfAWord);
}

/// Logical shift: masks off the sign bits that an arithmetic shift inserts.
at::Tensor shifted_right(const at::Tensor& bits, int64_t by) {
  return bits.bitwise_right_shift(at::Scalar(by)).bitwise_and_((int64_t{1} << (64 - by)) - 1);
}

/// Applies CounterRandom::mix to each number, in place.
void mix(const at::Tensor& bits) {
  bits.bitwise_xor_(shifted_right(bits, 30)).mul_(static_cast<int64_t>(CounterRandom::kMix1));
  bits.bitwise_xor_(shifted_right(bits, 27)).mul_(static_cast<int64_t>(CounterRandom::kMix2));
  bits.bitwise_xor_(shifted_right(bits, 31));
}

}  // namespace

at::Tensor drawn_by_loop(const MaskDraw& draw, int64_t num_samples, int64_t num_numbers) {
  at::Tensor mask_BN = at::empty({num_samples, num_numbers}, at::kFloat);
  auto* values = mask_BN.mutable_data_ptr<float>();
  const int64_t num_words = words_of(num_numbers);
  // Each sample has its own counters, so threads need no shared state.
  at::parallel_for(0, num_samples, /*grain_size=*/1, [&](int64_t begin, int64_t end) {
    for (int64_t sample = begin; sample < end; ++sample)
      draw_sample(draw, static_cast<uint64_t>((draw.first_sample + sample) * num_words),
                  num_numbers, values + sample * num_numbers);
  });
  return mask_BN;
}

at::Tensor drawn_by_tensors(const MaskDraw& draw, int64_t num_samples, int64_t num_numbers,
                            at::Device device) {
  // Word i of the generator is mix((i + 1) * kGolden + key), see CounterRandom.
  const int64_t num_words = words_of(num_numbers), first = draw.first_sample * num_words + 1;
  const at::Tensor bits_W =
      at::arange(first, first + num_samples * num_words, at::TensorOptions(device).dtype(at::kLong))
          .mul_(static_cast<int64_t>(CounterRandom::kGolden))
          .add_(static_cast<int64_t>(draw.random.key()));
  mix(bits_W);
  // The view as int16 splits each 64-bit word into its four numbers, lowest bits first.
  const at::Tensor kept_BN = bits_W.view(at::kShort)
                                 .view({num_samples, num_words * kNumbersOfAWord})
                                 .narrow(1, 0, num_numbers)
                                 .to(at::kInt)
                                 .bitwise_and_(0xffff)
                                 .lt(draw.num_kept);
  return kept_BN.to(at::kFloat).mul_(draw.kept_value);
}

Dropout::Dropout(const std::string& name, double share, int64_t seed, const LayerTable* table)
    : table_(table),
      seed_(seed),
      name_hash_(static_cast<int64_t>(fnv1a64(name))),
      num_kept_(std::max<int64_t>(1, std::llround((1 - share) * kOf))) {
  check(share >= 0 && share < 1, "a share that is dropped is in [0, 1)");
  if (num_kept_ < kOf) (void)table->pass();  // marks the pass as read before the first one
}

at::Tensor Dropout::operator()(const at::Tensor& inputs_BX) const {
  return is_on() ? inputs_BX * mask(inputs_BX) : inputs_BX;
}

at::Tensor Dropout::mask(const at::Tensor& inputs_BX) const {
  const at::NoGradGuard no_grad;
  if (inputs_BX.numel() == 0) return at::ones_like(inputs_BX);
  const ForwardPass& pass = table_->pass();
  const MaskDraw draw{.random = CounterRandom{seed_, name_hash_, pass.step},
                      .first_sample = pass.first_sample,
                      .num_kept = num_kept_,
                      .kept_value = static_cast<float>(kOf) / static_cast<float>(num_kept_)};
  const int64_t num_samples = inputs_BX.size(0), num_numbers = inputs_BX.numel() / num_samples;
  const at::Tensor mask_BN =
      inputs_BX.is_cpu() ? drawn_by_loop(draw, num_samples, num_numbers)
                         : drawn_by_tensors(draw, num_samples, num_numbers, inputs_BX.device());
  return mask_BN.to(inputs_BX.scalar_type()).view(inputs_BX.sizes());
}

}  // namespace lockstep::model
