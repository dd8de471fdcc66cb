#include "tests/support/fake_semi_sparse.h"

#include <optional>

#include <ATen/ATen.h>

namespace lockstep::tests {
namespace {

std::atomic<int> num_products_called = 0;
std::atomic<bool> refuses_all = false;

void require_type(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16,
              "a 16-bit type");
}

/// [M, K] to [9 M K / 16]: the kept values in order, then two bits a value: its place among four.
at::Tensor compress(const at::Tensor& weight_MK) {
  TORCH_CHECK(!refuses_all, "cuSPARSELt not supported on your machine.");
  require_type(weight_MK);
  TORCH_CHECK(
      weight_MK.is_contiguous() && weight_MK.size(0) % 16 == 0 && weight_MK.size(1) % 16 == 0,
      "a contiguous matrix of multiples of 16");
  const at::Tensor dense = weight_MK.to(at::kFloat);
  const auto* items = dense.const_data_ptr<float>();
  const int64_t num_values = weight_MK.numel() / 2;
  at::Tensor values = at::zeros({num_values});
  at::Tensor packed = at::zeros({weight_MK.numel() * 9 / 16}, weight_MK.options());
  auto* places = static_cast<uint8_t*>(packed.mutable_data_ptr()) + num_values * 2;
  for (int64_t first = 0; first < weight_MK.numel(); first += 4) {
    int64_t num = 0;
    for (int64_t j = 0; j < 4; ++j) {
      if (items[first + j] == 0) continue;
      TORCH_CHECK(num < 2, "a weight that is not 2:4");
      const int64_t value = first / 2 + num++;
      values.mutable_data_ptr<float>()[value] = items[first + j];
      places[value / 4] = static_cast<uint8_t>(places[value / 4] | j << (value % 4 * 2));
    }
  }
  packed.narrow(0, 0, num_values).copy_(values);
  return packed;
}

at::Tensor decompressed(const at::Tensor& packed, int64_t num_columns) {
  const int64_t num_elements = packed.numel() * 16 / 9, num_values = num_elements / 2;
  const at::Tensor values = packed.narrow(0, 0, num_values).to(at::kFloat);
  const auto* places = static_cast<const uint8_t*>(packed.const_data_ptr()) + num_values * 2;
  at::Tensor dense = at::zeros({num_elements});
  for (int64_t value = 0; value < num_values; ++value)
    dense.mutable_data_ptr<float>()[value / 2 * 4 + (places[value / 4] >> (value % 4 * 2) & 3)] +=
        values.const_data_ptr<float>()[value];
  return dense.view({num_elements / num_columns, num_columns});
}

at::Tensor sparse_mm(const at::Tensor& packed, const at::Tensor& dense_KN,
                     const std::optional<at::Tensor>& bias_M, const std::optional<at::Tensor>&,
                     std::optional<at::ScalarType>, bool transpose_result, int64_t, int64_t,
                     int64_t) {
  TORCH_CHECK(!refuses_all, "cuSPARSELt not supported on your machine.");
  require_type(packed);
  const int64_t num_columns = dense_KN.size(0);
  TORCH_CHECK(dense_KN.scalar_type() == packed.scalar_type(), "one type");
  TORCH_CHECK(dense_KN.is_contiguous() || dense_KN.t().is_contiguous(), "without gaps");
  TORCH_CHECK(num_columns % 16 == 0 && dense_KN.size(1) % 8 == 0, "multiples of 16 and 8");
  at::Tensor product_MN = at::mm(decompressed(packed, num_columns), dense_KN.to(at::kFloat));
  if (bias_M) {
    TORCH_CHECK(
        bias_M->scalar_type() == packed.scalar_type() && bias_M->numel() == product_MN.size(0),
        "a bias of the weight's type and rows");
    product_MN += bias_M->to(at::kFloat).unsqueeze(1);
  }
  ++num_products_called;
  product_MN = product_MN.to(packed.scalar_type());
  return transpose_result ? product_MN.t().contiguous() : product_MN;
}

}  // namespace

FakeSemiSparse::FakeSemiSparse(bool refuses)
    : library_(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__) {
  num_products_called = 0;
  refuses_all = refuses;
  library_.impl("_cslt_compress", TORCH_FN(compress));
  library_.impl("_cslt_sparse_mm", TORCH_FN(sparse_mm));
}

FakeSemiSparse::~FakeSemiSparse() = default;

int FakeSemiSparse::num_products() const { return num_products_called; }

}  // namespace lockstep::tests
