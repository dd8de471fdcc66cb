#include "recal/masks/mask_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace lockstep::recal {
namespace {

// These faults come from a recipe, so they have the exit code of a wrong configuration.
Error refusal(const std::string& text) { return {ExitCode::kConfig, "recal", text}; }

}  // namespace

void check_mask_kind(const MaskKind& kind, std::string_view name, c10::IntArrayRef shape) {
  if (kind.pattern == MaskPattern::kUnstructured) return;
  if (shape.size() < 2)
    throw refusal(fmt::format(
        "{} [{}] cannot be pruned by mask_type {}: that needs a weight [outputs, inputs, ...]; "
        "leave it out of params or use mask_type unstructured",
        name, fmt::join(shape, ", "), kind.text()));
  if (kind.pattern != MaskPattern::kNofM || shape[1] % kind.m == 0) return;
  throw refusal(fmt::format(
      "{} [{}] cannot be pruned by mask_type {}: its {} inputs are no multiple of {}; leave it out "
      "of params or use mask_type unstructured or block4",
      name, fmt::join(shape, ", "), kind.text(), shape[1], kind.m));
}

void check_mask_sparsity(const MaskKind& kind, double sparsity) {
  // Negated, so that NaN is refused too.
  if (!(sparsity >= 0 && sparsity <= 1))
    throw refusal(fmt::format("sparsity {} is not between 0 and 1", sparsity));
  if (kind.pattern != MaskPattern::kNofM) return;
  const double most = 1 - static_cast<double>(kind.n) / static_cast<double>(kind.m);
  if (sparsity <= most + kRoundingOfSparsity) return;
  throw refusal(
      fmt::format("mask_type {} keeps {} of {} weights, so that sparsity {} cannot be reached; ask "
                  "for {} or less, or use another mask_type",
                  kind.text(), kind.n, kind.m, sparsity, most));
}

}  // namespace lockstep::recal
