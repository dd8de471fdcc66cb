#include "model/linear/kept_weight.h"

#include <algorithm>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "base/simd/bit_mask.h"
#include "model/linear/few_samples.h"

namespace lockstep::model {

int64_t tile_width(int64_t num_samples) {
  if (num_samples > 16) return 32;
  return num_samples > 8 ? 16 : 8;
}

at::Tensor tiled(const at::Tensor& samples_BN, int64_t width_T) {
  const int64_t num_samples = samples_BN.size(0), num = samples_BN.size(1);
  const int64_t num_tiles = (num_samples + width_T - 1) / width_T;
  // Zeros only where samples are missing: their products are then 0.
  at::Tensor tiles = num_samples % width_T == 0
                         ? at::empty({num_tiles, num, width_T}, samples_BN.options())
                         : at::zeros({num_tiles, num, width_T}, samples_BN.options());
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    const int64_t first = tile * width_T, num_here = std::min(width_T, num_samples - first);
    tiles[tile].narrow(1, 0, num_here).copy_(samples_BN.narrow(0, first, num_here).t());
  }
  return tiles;
}

at::Tensor untiled(const at::Tensor& tiles, int64_t num_samples) {
  const int64_t width_T = tiles.size(2), num = tiles.size(1);
  at::Tensor samples_BN = at::empty({num_samples, num}, tiles.options());
  for (int64_t tile = 0; tile < tiles.size(0); ++tile) {
    const int64_t first = tile * width_T, num_here = std::min(width_T, num_samples - first);
    samples_BN.narrow(0, first, num_here).copy_(tiles[tile].narrow(1, 0, num_here).t());
  }
  return samples_BN;
}

namespace {

/// Smallest number of multiplications for a thread of its own.
constexpr int64_t kGrain = 1 << 18;

/// Elements of a mask that are read at once.
constexpr int64_t kBlockElements = 1 << 16;

}  // namespace

std::shared_ptr<const KeptWeight> KeptWeight::make(const uint8_t* bits, int64_t num_rows,
                                                   int64_t num_columns) {
  const int64_t num_elements = num_rows * num_columns;
  if (num_elements < kLeastElements) return nullptr;
  const int64_t num_kept = count_kept(bits, num_elements);
  if (static_cast<double>(num_kept) > kMostKept * static_cast<double>(num_elements)) return nullptr;
  return std::make_shared<const KeptWeight>(bits, num_rows, num_columns);
}

KeptWeight::KeptWeight(const uint8_t* bits, int64_t num_rows, int64_t num_columns)
    : num_rows_(num_rows), num_columns_(num_columns) {
  check(num_columns < (int64_t{1} << 32), "a row's places have 32 bits");
  const int64_t num_elements = num_rows * num_columns;
  columns_K_.reserve(static_cast<size_t>(count_kept(bits, num_elements)));
  begins_.reserve(static_cast<size_t>(num_rows) + 1);
  begins_.push_back(0);
  std::vector<uint32_t> places(kBlockElements + kPlaceSlack);
  int64_t row_begin = 0;
  for (int64_t first = 0; first < num_elements; first += kBlockElements) {
    const int64_t num =
        find_kept(bits + first / 8, std::min(kBlockElements, num_elements - first), places.data());
    for (int64_t i = 0; i < num; ++i) {
      const int64_t at = first + places[static_cast<size_t>(i)];
      // Rows without kept elements begin where the next one does.
      for (; at >= row_begin + num_columns; row_begin += num_columns) begins_.push_back(num_kept());
      columns_K_.push_back(static_cast<uint32_t>(at - row_begin));
    }
  }
  // Rows after the last kept element are empty.
  begins_.resize(static_cast<size_t>(num_rows) + 1, num_kept());
}

bool KeptWeight::pays(int64_t num_samples) const {
  const int64_t num_elements = num_rows_ * num_columns_;
  // Dense products of few samples have fast code, so this pays only for a smaller share.
  const bool are_few = num_samples == 1 || few_samples_pay(num_samples, num_elements);
  const double most = are_few ? kMostKeptOfFew : num_samples < kMany ? kMostKept : kMostKeptOfMany;
  return static_cast<double>(num_kept()) <= most * static_cast<double>(num_elements);
}

template <typename Function>
void KeptWeight::for_rows(int64_t num_samples, const Function& function) const {
  const int64_t work_a_row = std::max<int64_t>(1, num_samples * num_kept() / num_rows_);
  at::parallel_for(0, num_rows_, std::max<int64_t>(1, kGrain / work_a_row), function);
}

at::Tensor KeptWeight::values_of(const at::Tensor& weight_OI) const {
  at::Tensor values_K = at::empty({num_kept()}, weight_OI.options());
  const float* const weight = weight_OI.const_data_ptr<float>();
  float* const values = values_K.mutable_data_ptr<float>();
  for_rows(1, [&](int64_t begin_O, int64_t end_O) {
    for (int64_t row = begin_O; row < end_O; ++row) {
      const auto o = static_cast<size_t>(row);
      for (int64_t k = begins_[o]; k < begins_[o + 1]; ++k)
        values[k] = weight[row * num_columns_ + columns_K_[static_cast<size_t>(k)]];
    }
  });
  return values_K;
}

at::Tensor KeptWeight::outputs(const at::Tensor& values_K, const at::Tensor& inputs_BI,
                               const at::Tensor& bias_O, SimdPath path) const {
  const int64_t num_samples = inputs_BI.size(0), width_T = tile_width(num_samples);
  const at::Tensor inputs = tiled(inputs_BI, width_T);
  const at::Tensor outputs = at::empty({inputs.size(0), num_rows_, width_T}, inputs.options());
  const float* const bias = bias_O.defined() ? bias_O.const_data_ptr<float>() : nullptr;
  for (int64_t tile = 0; tile < inputs.size(0); ++tile)
    for_rows(width_T, [&](int64_t begin_O, int64_t end_O) {
      kept_products(path).outputs(rows(begin_O, end_O), values_K.const_data_ptr<float>(),
                                  data_of(inputs, tile), bias, width_T, data_of(outputs, tile));
    });
  return untiled(outputs, num_samples);
}

at::Tensor KeptWeight::input_grads(const at::Tensor& values_K, const at::Tensor& grads_BO,
                                   SimdPath path) const {
  const int64_t num_samples = grads_BO.size(0), width_T = tile_width(num_samples);
  const at::Tensor grads = tiled(grads_BO, width_T);
  const at::Tensor inputs = at::zeros({grads.size(0), num_columns_, width_T}, grads.options());
  // Each thread has whole tiles, or a part of the columns if there are few tiles.
  const int64_t num_parts =
      std::clamp<int64_t>(at::get_num_threads() / std::max<int64_t>(1, grads.size(0)), 1,
                          1 + width_T * num_kept() / kGrain);
  const int64_t part_I = (num_columns_ + num_parts - 1) / num_parts;
  at::parallel_for(0, grads.size(0) * num_parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t tile = task / num_parts, first_I = task % num_parts * part_I;
      const Columns part = columns(first_I, first_I + part_I);
      kept_products(path).input_grads(
          {0, num_rows_, part.begins.data(), part.ends.data(), columns_K_.data()},
          values_K.const_data_ptr<float>(), data_of(grads, tile), width_T, data_of(inputs, tile));
    }
  });
  return untiled(inputs, num_samples);
}

/// Restricts every row to some columns, by binary search: columns ascend within a row.
KeptWeight::Columns KeptWeight::columns(int64_t begin_I, int64_t end_I) const {
  Columns part{.begins{begins_.begin(), begins_.end() - 1},
               .ends{begins_.begin() + 1, begins_.end()}};
  if (begin_I <= 0 && end_I >= num_columns_) return part;
  for (size_t o = 0; o < part.begins.size(); ++o) {
    const auto first = columns_K_.begin() + begins_[o], last = columns_K_.begin() + begins_[o + 1];
    part.begins[o] = std::lower_bound(first, last, begin_I) - columns_K_.begin();
    part.ends[o] = std::lower_bound(first, last, end_I) - columns_K_.begin();
  }
  return part;
}

void KeptWeight::zero_others(const at::Tensor& grad_OI) const {
  for_rows(1, [&](int64_t begin_O, int64_t end_O) {
    for (int64_t row = begin_O; row < end_O; ++row) {
      const auto o = static_cast<size_t>(row);
      float* const grads = grad_OI.mutable_data_ptr<float>() + row * num_columns_;
      int64_t next = 0;
      for (int64_t k = begins_[o]; k < begins_[o + 1]; ++k) {
        const int64_t column = columns_K_[static_cast<size_t>(k)];
        std::fill(grads + next, grads + column, 0.0F);
        next = column + 1;
      }
      std::fill(grads + next, grads + num_columns_, 0.0F);
    }
  });
}

void KeptWeight::write_grads(const at::Tensor& grads_BO, const at::Tensor& inputs_BI, bool adds,
                             const at::Tensor& grad_OI, SimdPath path) const {
  const int64_t num_samples = grads_BO.size(0), width_T = tile_width(num_samples);
  const at::Tensor grads = tiled(grads_BO, width_T), inputs = tiled(inputs_BI, width_T);
  // The gradient buffer is reused; elements outside the mask stay zero until others write.
  if (!std::exchange(others_are_zero_, true)) zero_others(grad_OI);
  float* const grad = grad_OI.mutable_data_ptr<float>();
  for_rows(num_samples, [&](int64_t begin_O, int64_t end_O) {
    kept_products(path).weight_grads(rows(begin_O, end_O), view_of(grads), num_rows_,
                                     view_of(inputs), num_columns_, adds, grad);
  });
}

}  // namespace lockstep::model
