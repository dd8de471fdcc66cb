#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "base/simd/bit_mask.h"
#include "base/simd/simd.h"

namespace lockstep::optim {

/// [N], between -1 and 1; a pure function.
inline at::Tensor numbers(int64_t num, int64_t seed) {
  const CounterRandom random{seed};
  at::Tensor values = at::empty({num}, at::kFloat);
  for (int64_t i = 0; i < num; ++i)
    values.mutable_data_ptr<float>()[i] =
        static_cast<float>(2 * random.uniform(static_cast<uint64_t>(i)) - 1);
  return values;
}

/// Each element kept with this chance. Of one seed, a mask that keeps less is part of one that
/// keeps more.
inline std::vector<uint8_t> random_bits(int64_t num, double kept, int64_t seed) {
  const CounterRandom random{seed};
  std::vector<uint8_t> bits(static_cast<size_t>(num_mask_bytes(num)));
  for (int64_t i = 0; i < num; ++i)
    if (random.uniform(static_cast<uint64_t>(i)) < kept)
      bits[static_cast<size_t>(i / 8)] |= static_cast<uint8_t>(1U << (i % 8));
  return bits;
}

/// Bit for bit where ATen's vectors do what optim/rules.h says; elsewhere within rounding.
inline void expect_same(const at::Tensor& one, const at::Tensor& other) {
  if (fastest_simd_path() != SimdPath::kPortable)
    EXPECT_TRUE(at::equal(one, other));
  else
    EXPECT_TRUE(at::allclose(one, other, 1e-6, 1e-8));
}

}  // namespace lockstep::optim
