#include "model/linear/linear_function.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include "model/linear/few_samples.h"
#include "model/linear/semi_sparse.h"

namespace lockstep::model {
namespace {

/// Approximate elements of a block: 4 MiB, enough for full speed, and 34 ms of a 1 Gbit/s link.
constexpr int64_t kElementsOfABlock = 1 << 20;
/// Elements of the first block, smaller like the step's first bucket: until then the link is idle.
constexpr int64_t kElementsOfFirst = 1 << 18;
/// Rows that a kernel takes at once; it handles a remainder row by row.
constexpr int64_t kRowsAtOnce = 24;

int64_t divided_up(int64_t number, int64_t by) { return (number + by - 1) / by; }

/// Returns the block that begins at a row. On a GPU all rows, since one product is faster there.
Rows block_at(int64_t begin, const at::Tensor& grad_OI) {
  const int64_t num_rows = grad_OI.size(0), num_left = (num_rows - begin) * grad_OI.size(1);
  if (!grad_OI.is_cpu() || num_left <= kElementsOfABlock) return {begin, num_rows};
  const int64_t least = begin == 0
                            ? divided_up(kElementsOfFirst, grad_OI.size(1))
                            // The rest is divided into blocks of nearly equal size.
                            : divided_up(num_rows - begin, divided_up(num_left, kElementsOfABlock));
  const int64_t size = divided_up(least, kRowsAtOnce) * kRowsAtOnce;
  return {begin, std::min(begin + size, num_rows)};
}

void write_rows(const at::Tensor& grads_BO, const at::Tensor& inputs_BI, bool adds,
                const Rows& rows, const at::Tensor& grad_OI) {
  at::Tensor grad_RI = grad_OI.narrow(0, rows.begin, rows.end - rows.begin);
  const at::Tensor grads_RB = grads_BO.narrow(1, rows.begin, rows.end - rows.begin).t();
  if (adds)
    at::addmm_out(grad_RI, grad_RI, grads_RB, inputs_BI);
  else
    at::mm_out(grad_RI, grads_RB, inputs_BI);
}

}  // namespace

void write_weight_grad(const at::Tensor& grads_BO, const at::Tensor& inputs_BI, bool adds,
                       const std::function<void(int64_t num_elements)>& on_written,
                       at::Tensor grad_OI) {
  // Narrow factors: the product must be rounded to their type before it is added.
  if (grads_BO.scalar_type() != grad_OI.scalar_type()) {
    const at::Tensor product_OI = at::mm(grads_BO.t(), inputs_BI);
    adds ? grad_OI.add_(product_OI) : grad_OI.copy_(product_OI);
    return;
  }
  const bool are_few = has_few_samples(grads_BO, grad_OI) && has_few_samples(inputs_BI, grad_OI);
  const int64_t num_rows = grad_OI.size(0);
  for (Rows rows = block_at(0, grad_OI); rows.begin < num_rows;
       rows = block_at(rows.end, grad_OI)) {
    if (are_few)
      write_few_grads(grads_BO, inputs_BI, adds, rows, grad_OI);
    else
      write_rows(grads_BO, inputs_BI, adds, rows, grad_OI);
    if (on_written) on_written(rows.end * grad_OI.size(1));
  }
}

// Autograd functions of a linear layer. Forward and the input's gradient are one node (Product),
// the parameters' gradients another one (WritesGradients), which backward reaches first. So hooks
// on the parameters, which start an all-reduce, run before the input's gradient is computed. Small
// layers use one node for both. The parameters' gradients are written here, not by autograd: for an
// undefined result autograd adds nothing.
//
// Pointers (GradInPlace, KeptWeight) travel in saved_data as integers. They outlive backward,
// because the layer owns them.
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Adds grads_KM^T inputs_KN to the parameter's gradient, or overwrites it if stale. Returns the
/// product if the parameter has no gradient tensor.
at::Tensor write_product(const at::Tensor& param_MN, const at::Tensor& grads_KM,
                         const at::Tensor& inputs_KN, GradInPlace* in_place) {
  if (!param_MN.grad().defined()) return at::mm(grads_KM.t(), inputs_KN);
  const bool adds = !std::exchange(in_place->is_stale, false);
  write_weight_grad(grads_KM, inputs_KN, adds, in_place->on_written, param_MN.grad());
  return {};
}

/// Optional tensor: the form in which autograd functions take an absent bias.
using MaybeTensor = std::optional<at::Tensor>;
MaybeTensor maybe(const at::Tensor& tensor) {
  return tensor.defined() ? MaybeTensor(tensor) : std::nullopt;
}

at::Tensor add_column_sums(const at::Tensor& param_N, const at::Tensor& values_KN) {
  at::Tensor sums_N = values_KN.sum(0);
  at::Tensor& grad_N = param_N.mutable_grad();
  if (!grad_N.defined()) return sums_N;
  // Only weights can be stale (GradInPlace). A bias's gradient is zeroed before each step.
  grad_N.add_(sums_N);
  return {};
}

/// True if shapes and types fit. Lockstep's kernels do not check; LibTorch's report the error.
bool are_of_one_layer(const at::Tensor& inputs_BI, const at::Tensor& weight_OI,
                      const at::Tensor& bias_O) {
  return inputs_BI.dim() == 2 && inputs_BI.size(1) == weight_OI.size(1) &&
         (!bias_O.defined() || (bias_O.is_cpu() && bias_O.scalar_type() == at::kFloat &&
                                bias_O.is_contiguous() && bias_O.numel() == weight_OI.size(0)));
}

at::Tensor product(const at::Tensor& inputs_BI, const at::Tensor& weight_OI,
                   const at::Tensor& bias_O) {
  if (has_few_samples(inputs_BI, weight_OI) && are_of_one_layer(inputs_BI, weight_OI, bias_O))
    return few_outputs(inputs_BI, weight_OI, bias_O);
  return at::linear(inputs_BI, weight_OI, bias_O);
}

at::Tensor product_with_weight(const at::Tensor& grads_BO, const at::Tensor& weight_OI) {
  if (!at::GradMode::is_enabled() && has_few_samples(grads_BO, weight_OI))
    return few_input_grads(grads_BO, weight_OI);
  return at::mm(grads_BO, weight_OI);
}

/// Maps inputs_BI, weight_OI, bias_O to [B, O]. Backward computes the inputs' gradient only.
struct Product : torch::autograd::Function<Product> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& inputs_BI,
                            const at::Tensor& weight_OI, const MaybeTensor& bias_O) {
    context->save_for_backward({weight_OI});
    return product(inputs_BI, weight_OI, bias_O.value_or(at::Tensor()));
  }

  static variable_list backward(AutogradContext* context, const variable_list& outputs) {
    variable_list grads(3);
    if (outputs[0].defined() && context->needs_input_grad(0))
      grads[0] = product_with_weight(outputs[0], context->get_saved_variables()[0]);
    return grads;
  }
};

/// Product with kept elements only. A second derivative uses all elements.
struct KeptProduct : torch::autograd::Function<KeptProduct> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& inputs_BI,
                            const at::Tensor& weight_OI, const MaybeTensor& bias_O,
                            const KeptWeight* kept) {
    const at::Tensor values_K = kept->values_of(weight_OI);
    context->saved_data["kept"] = reinterpret_cast<int64_t>(kept);
    context->save_for_backward({values_K, weight_OI});
    return kept->outputs(values_K, inputs_BI, bias_O.value_or(at::Tensor()));
  }

  static variable_list backward(AutogradContext* context, const variable_list& outputs) {
    variable_list grads(4);
    if (!outputs[0].defined() || !context->needs_input_grad(0)) return grads;
    const variable_list saved = context->get_saved_variables();
    grads[0] = at::GradMode::is_enabled() ? at::mm(outputs[0], saved[1])
                                          : kept_of(context)->input_grads(saved[0], outputs[0]);
    return grads;
  }

  static const KeptWeight* kept_of(AutogradContext* context) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an IValue stores integers but no plain pointers
    return reinterpret_cast<const KeptWeight*>(context->saved_data["kept"].toInt());
  }
};

/// Product on sparse tensor cores. A second derivative uses dense products.
struct SemiSparseProduct : torch::autograd::Function<SemiSparseProduct> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& inputs_BI,
                            const at::Tensor& weight_OI, const MaybeTensor& bias_O) {
    context->save_for_backward({weight_OI});
    return semi_sparse_product(inputs_BI, weight_OI, bias_O.value_or(at::Tensor()));
  }

  static variable_list backward(AutogradContext* context, const variable_list& outputs) {
    variable_list grads(3);
    if (!outputs[0].defined() || !context->needs_input_grad(0)) return grads;
    const at::Tensor weight_OI = context->get_saved_variables()[0];
    grads[0] = at::GradMode::is_enabled() ? at::mm(outputs[0], weight_OI)
                                          : semi_sparse_product(outputs[0], weight_OI.t(), {});
    return grads;
  }
};

/// Smallest number of elements of a weight whose gradient gets an autograd node of its own.
constexpr int64_t kLeastNode = 1 << 16;

/// Tensors that forward computes with: the parameters, or autocast's casts. They get no gradient.
struct Factors {
  at::Tensor weight_OI;
  MaybeTensor bias_O;
};

/// Parameter gradients, shared by both ways of backward. saved[0] inputs_BI, [1] weight_OI, [2]
/// bias_O, [3] the weight that forward used, if the node needs it. An undefined result means that
/// the gradient is already written.
struct ParamGrads {
  at::Tensor weight_OI, bias_O;
};
void save_params(AutogradContext* context, const at::Tensor& inputs_BI, const at::Tensor& weight_OI,
                 const MaybeTensor& bias_O, GradInPlace* in_place, const at::Tensor& factor_OI = {},
                 const KeptWeight* kept = nullptr) {
  context->saved_data["kept"] = reinterpret_cast<int64_t>(kept);
  context->saved_data["in_place"] = reinterpret_cast<int64_t>(in_place);
  context->save_for_backward({inputs_BI, weight_OI, bias_O.value_or(at::Tensor()), factor_OI});
}
ParamGrads write_params(AutogradContext* context, const variable_list& saved,
                        const at::Tensor& grad_BO, size_t weight_input) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an IValue stores integers but no plain pointers
  auto* in_place = reinterpret_cast<GradInPlace*>(context->saved_data["in_place"].toInt());
  ParamGrads grads;
  if (context->needs_input_grad(weight_input)) {
    const KeptWeight* const kept = KeptProduct::kept_of(context);
    if (kept != nullptr && kept->pays(grad_BO.size(0))) {
      kept->write_grads(grad_BO, saved[0], /*adds=*/!std::exchange(in_place->is_stale, false),
                        saved[1].grad());
    } else {
      grads.weight_OI = write_product(saved[1], grad_BO, saved[0], in_place);
      // A dense product wrote elements outside the mask, which write_grads() must zero later.
      if (kept != nullptr) kept->note_dense_grad();
    }
  }
  if (saved[2].defined() && context->needs_input_grad(weight_input + 1))
    grads.bias_O = add_column_sums(saved[2], grad_BO);
  return grads;
}

/// Passes outputs_BO through. Its backward writes the gradients of the parameters that made them.
/// Backward reaches this node before Product, so hooks on the parameters run early.
struct WritesGradients : torch::autograd::Function<WritesGradients> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& outputs_BO,
                            const at::Tensor& inputs_BI, const at::Tensor& weight_OI,
                            const MaybeTensor& bias_O, GradInPlace* in_place,
                            const KeptWeight* kept) {
    save_params(context, inputs_BI, weight_OI, bias_O, in_place, {}, kept);
    // A view: autograd would treat the same tensor as an input that is returned unchanged.
    return outputs_BO.view_as(outputs_BO);
  }

  static variable_list backward(AutogradContext* context, const variable_list& outputs) {
    const at::NoGradGuard no_grad;
    if (!outputs[0].defined()) return variable_list(6);
    const ParamGrads grads =
        write_params(context, context->get_saved_variables(), outputs[0], /*weight_input=*/2);
    return {outputs[0], {}, grads.weight_OI, grads.bias_O, {}, {}};
  }
};

/// Does both in one node, which costs less time per call.
struct ProductAndGradients : torch::autograd::Function<ProductAndGradients> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& inputs_BI,
                            const at::Tensor& weight_OI, const MaybeTensor& bias_O,
                            const Factors& factors, GradInPlace* in_place) {
    save_params(context, inputs_BI, weight_OI, bias_O, in_place, factors.weight_OI);
    return at::linear(inputs_BI, factors.weight_OI, factors.bias_O);
  }

  static variable_list backward(AutogradContext* context, const variable_list& outputs) {
    const at::NoGradGuard no_grad;
    if (!outputs[0].defined()) return variable_list(5);
    const variable_list saved = context->get_saved_variables();
    const ParamGrads grads = write_params(context, saved, outputs[0], /*weight_input=*/1);
    at::Tensor inputs;
    if (context->needs_input_grad(0)) inputs = at::mm(outputs[0], saved[3]);
    return {inputs, grads.weight_OI, grads.bias_O, {}, {}};
  }
};

bool can_write_in_place(const at::Tensor& inputs, const at::Tensor& weight,
                        const at::Tensor& bias) {
  const auto has_grad = [](const at::Tensor& param) {
    return param.is_leaf() && param.grad().defined();
  };
  return at::GradMode::is_enabled() && inputs.dim() == 2 && has_grad(weight) &&
         (!bias.defined() || has_grad(bias));
}

/// Casts to autocast's type if autocast is on. The cast is a node of autograd, so an input gets a
/// gradient of its own type. LibTorch caches the cast of a parameter for the forward pass. Other
/// users of the parameter find it there, and their gradients reach the parameter.
at::Tensor cast_by_autocast(const at::Tensor& tensor, at::DeviceType device) {
  if (!tensor.defined() || !at::autocast::is_autocast_enabled(device)) return tensor;
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), tensor, device);
}

at::Tensor linear_in_place(const at::Tensor& inputs_BI, const at::Tensor& weight_OI,
                           const MaybeTensor& bias_O, const Factors& factors, GradInPlace* in_place,
                           bool is_semi_sparse) {
  if (weight_OI.numel() < kLeastNode && !is_semi_sparse)
    return ProductAndGradients::apply(inputs_BI, weight_OI, bias_O, factors, in_place);
  // Detached: a product must not give the parameters a gradient, since WritesGradients does.
  const at::Tensor weight = factors.weight_OI.detach();
  const MaybeTensor bias = factors.bias_O ? MaybeTensor(factors.bias_O->detach()) : std::nullopt;
  const at::Tensor outputs_BO = is_semi_sparse ? SemiSparseProduct::apply(inputs_BI, weight, bias)
                                               : Product::apply(inputs_BI, weight, bias);
  return WritesGradients::apply(outputs_BO, inputs_BI.detach(), weight_OI, bias_O, in_place,
                                nullptr);
}

/// True in training only: evaluations and exports must have LibTorch's bits.
bool can_use_kept(const at::Tensor& inputs, const at::Tensor& weight, const at::Tensor& bias) {
  const auto is_float = [](const at::Tensor& tensor) {
    return tensor.is_cpu() && tensor.scalar_type() == at::kFloat;
  };
  const bool is_frozen = !weight.requires_grad() && !bias.requires_grad();
  return at::GradMode::is_enabled() && is_float(inputs) && is_float(weight) &&
         weight.is_contiguous() && are_of_one_layer(inputs, weight, bias) &&
         !at::autocast::is_autocast_enabled(at::kCPU) &&
         (is_frozen || can_write_in_place(inputs, weight, bias));
}

at::Tensor linear_of_kept(const at::Tensor& inputs_BI, const at::Tensor& weight_OI,
                          const MaybeTensor& bias_O, GradInPlace* in_place,
                          const KeptWeight* kept) {
  const at::Tensor weight = weight_OI.detach();
  const MaybeTensor bias = bias_O ? MaybeTensor(bias_O->detach()) : bias_O;
  const at::Tensor outputs_BO = kept->pays(inputs_BI.size(0))
                                    ? KeptProduct::apply(inputs_BI, weight, bias, kept)
                                    : Product::apply(inputs_BI, weight, bias);
  if (!weight_OI.requires_grad()) return outputs_BO;
  return WritesGradients::apply(outputs_BO, inputs_BI.detach(), weight_OI, bias_O, in_place, kept);
}

/// The layer of linear_into(). inputs_BI [B, I].
struct ProductInto : torch::autograd::Function<ProductInto> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& inputs_BI,
                            const at::Tensor& weight_OI, const MaybeTensor& bias_O,
                            const at::Tensor& grad_OI) {
    context->save_for_backward({inputs_BI, weight_OI});
    // Where activations are recomputed, the saved weight is another tensor than the parameter.
    context->saved_data["param"] = weight_OI;
    context->saved_data["grad"] = grad_OI;
    return product(inputs_BI, weight_OI, bias_O.value_or(at::Tensor()));
  }

  static variable_list backward(AutogradContext* context, const variable_list& outputs) {
    variable_list grads(4);
    if (!outputs[0].defined()) return grads;
    const variable_list saved = context->get_saved_variables();
    const at::Tensor grads_BO = outputs[0].contiguous();
    if (context->needs_input_grad(1)) {
      if (must_return_grad())
        grads[1] = at::mm(grads_BO.t(), saved[0]);
      else
        write_grad(grads_BO, saved[0], context->saved_data["param"].toTensor(),
                   context->saved_data["grad"].toTensor());
    }
    if (context->needs_input_grad(0)) grads[0] = product_with_weight(grads_BO, saved[1]);
    if (context->needs_input_grad(2)) grads[2] = grads_BO.sum(0);
    return grads;
  }

  /// True in a backward pass whose gradients are used otherwise than as `grad`: by a second
  /// derivative, or by the caller of torch.autograd.grad().
  static bool must_return_grad() {
    const auto* const wanted = torch::autograd::get_current_graph_task_exec_info();
    return at::GradMode::is_enabled() || (wanted != nullptr && !wanted->empty());
  }

  static void write_grad(const at::Tensor& grads_BO, const at::Tensor& inputs_BI,
                         const at::Tensor& weight_OI, const at::Tensor& grad_OI) {
    at::Tensor& grad = weight_OI.mutable_grad();
    const bool adds = grad.defined();
    write_weight_grad(grads_BO, inputs_BI, adds, nullptr, adds ? grad : grad_OI);
    if (!adds) grad = grad_OI;
  }
};

/// True if nothing but a plain backward pass can follow.
bool is_plain_training(const at::Tensor& inputs) {
  constexpr c10::DispatchKeySet kTransforms({c10::DispatchKey::FuncTorchBatched,
                                             c10::DispatchKey::FuncTorchGradWrapper,
                                             c10::DispatchKey::Python});
  return at::GradMode::is_enabled() && !at::autocast::is_autocast_enabled(at::kCPU) &&
         !inputs.key_set().has_any(kTransforms) && !inputs._fw_grad(/*level=*/0).defined() &&
         !torch::jit::tracer::isTracing();
}

/// True if the weight's gradient goes nowhere but to its `grad`.
bool is_unwatched(const at::Tensor& weight) {
  return torch::autograd::impl::hooks(weight).empty() &&
         torch::autograd::impl::post_acc_grad_hooks(weight) == nullptr;
}

bool is_float_on_cpu(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.layout() == at::kStrided;
}

}  // namespace

at::Tensor linear(const at::Tensor& inputs_BI, const at::Tensor& weight_OI,
                  const at::Tensor& bias_O, const std::shared_ptr<GradInPlace>& grad,
                  const MaskedProducts* masked) {
  if (masked != nullptr && masked->kept != nullptr && can_use_kept(inputs_BI, weight_OI, bias_O))
    return linear_of_kept(inputs_BI, weight_OI, maybe(bias_O), grad.get(), masked->kept.get());
  if (can_write_in_place(inputs_BI, weight_OI, bias_O)) {
    const at::DeviceType device = weight_OI.device().type();
    const at::Tensor cast_BI = cast_by_autocast(inputs_BI, device);
    const Factors factors{cast_by_autocast(weight_OI, device),
                          maybe(cast_by_autocast(bias_O, device))};
    // Types may still differ, such as inputs of float64. at::linear then reports it.
    if (cast_BI.scalar_type() == factors.weight_OI.scalar_type())
      return linear_in_place(cast_BI, weight_OI, maybe(bias_O), factors, grad.get(),
                             masked != nullptr && masked->is_semi_sparse &&
                                 semi_sparse_pays(cast_BI, factors.weight_OI));
  }
  settle_grad(weight_OI, grad);
  return at::linear(inputs_BI, weight_OI, bias_O);
}

at::Tensor linear_into(const at::Tensor& inputs, const at::Tensor& weight_OI,
                       const at::Tensor& bias_O, const at::Tensor& grad_OI) {
  const bool can_write = is_float_on_cpu(inputs) && is_float_on_cpu(weight_OI) &&
                         inputs.dim() > 0 && inputs.numel() > 0 && is_plain_training(inputs) &&
                         weight_OI.requires_grad() && is_unwatched(weight_OI);
  if (!can_write) return at::linear(inputs, weight_OI, bias_O);
  const at::Tensor inputs_BI = inputs.reshape({-1, inputs.size(-1)}).contiguous();
  if (!are_of_one_layer(inputs_BI, weight_OI, bias_O))
    return at::linear(inputs, weight_OI, bias_O);  // it reports a mistake
  const at::Tensor outputs_BO = ProductInto::apply(inputs_BI, weight_OI, maybe(bias_O), grad_OI);
  std::vector<int64_t> sizes = inputs.sizes().vec();
  sizes.back() = weight_OI.size(0);
  return outputs_BO.view(sizes);
}

void settle_grad(const at::Tensor& param, const std::shared_ptr<GradInPlace>& grad) {
  if (!at::GradMode::is_enabled() || !param.is_leaf() || !grad->is_stale) return;
  grad->is_stale = false;
  if (param.grad().defined()) param.mutable_grad().zero_();
}

}  // namespace lockstep::model
