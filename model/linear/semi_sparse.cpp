#include "model/linear/semi_sparse.h"

#include <bit>
#include <exception>
#include <map>
#include <mutex>
#include <utility>

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_cslt_compress.h>
#include <ATen/ops/_cslt_sparse_mm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "base/log.h"

namespace lockstep::model {
namespace {

/// Extents of a compressed weight are multiples of this (cuSPARSELt, 16-bit types).
constexpr int64_t kMultiple = 16;

/// Numbers of samples are multiples of this.
constexpr int64_t kMultipleOfSamples = 8;

/// Tries a small product. A LibTorch without cuSPARSELt, or a GPU without sparse tensor cores,
/// refuses it only when it is called.
bool works_on(at::TensorOptions options) {
  const at::NoGradGuard no_grad;
  try {
    const at::Tensor zeros = at::zeros({2 * kMultiple, 2 * kMultiple}, options);
    (void)semi_sparse_product(zeros, zeros, {}).sum().item<float>();
    return true;
  } catch (const std::exception& error) {
    const auto* const of_libtorch = dynamic_cast<const c10::Error*>(&error);
    log::warning("model", fmt::format("this GPU cannot compute 2:4 weights, so their products are "
                                      "dense: {}",
                                      of_libtorch != nullptr ? of_libtorch->what_without_backtrace()
                                                             : error.what()));
    return false;
  }
}

bool works_on_device_of(const at::Tensor& tensor) {
  static std::mutex mutex;
  static std::map<std::pair<c10::DeviceType, at::ScalarType>, bool> known;
  const std::scoped_lock lock(mutex);
  const auto key = std::pair(tensor.device().type(), tensor.scalar_type());
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  return known[key] = works_on(tensor.options());
}

}  // namespace

bool may_be_semi_sparse(const at::Tensor& weight) {
  const auto key = c10::toRuntimePerBackendFunctionalityKey(c10::DispatchKey::Dense,
                                                            weight.key_set().highestBackendKey());
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("aten::_cslt_compress", "")
      .hasKernelForDispatchKey(key);
}

bool is_semi_sparse(const uint8_t* bits, int64_t num_rows, int64_t num_columns) {
  if (num_rows % kMultiple != 0 || num_columns % kMultiple != 0) return false;
  const int64_t row_bytes = num_columns / 8;
  const auto is_2_of_4 = [](unsigned four) { return std::popcount(four) <= 2; };
  for (int64_t row = 0; row < num_rows; row += 4)
    for (int64_t byte = 0; byte < row_bytes; ++byte) {
      unsigned once = 0, twice = 0, thrice = 0;  // columns that so many of the four rows keep
      for (int64_t i = 0; i < 4; ++i) {
        const unsigned eight = bits[(row + i) * row_bytes + byte];
        if (!is_2_of_4(eight & 0xfU) || !is_2_of_4(eight >> 4)) return false;
        thrice |= twice & eight;
        twice |= once & eight;
        once |= eight;
      }
      if (thrice != 0) return false;
    }
  return true;
}

bool semi_sparse_pays(const at::Tensor& inputs_BI, const at::Tensor& weight_OI) {
  const at::ScalarType type = weight_OI.scalar_type();
  return (type == at::kHalf || type == at::kBFloat16) && inputs_BI.size(0) >= kLeastSemiSparse &&
         works_on_device_of(weight_OI);
}

at::Tensor semi_sparse_product(const at::Tensor& samples_BK, const at::Tensor& weight_MK,
                               const at::Tensor& bias_M) {
  const int64_t num_samples = samples_BK.size(0);
  const int64_t num_missing =
      (kMultipleOfSamples - num_samples % kMultipleOfSamples) % kMultipleOfSamples;
  const at::Tensor padded_BK = num_missing == 0
                                   ? samples_BK.contiguous()
                                   : at::constant_pad_nd(samples_BK, {0, 0, 0, num_missing});
  const at::Tensor packed = at::_cslt_compress(weight_MK.contiguous());
  const std::optional<at::Tensor> bias = bias_M.defined() ? std::optional(bias_M) : std::nullopt;
  // Computes weight × samples^T, [M, B], and stores it transposed.
  return at::_cslt_sparse_mm(packed, padded_BK.t(), bias, /*alpha=*/{}, /*out_dtype=*/{},
                             /*transpose_result=*/true)
      .narrow(0, 0, num_samples);
}

}  // namespace lockstep::model
