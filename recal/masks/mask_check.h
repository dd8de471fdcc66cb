#pragma once

#include <cstdint>
#include <string_view>

#include <c10/util/ArrayRef.h>

#include "recal/masks/mask_kind.h"

namespace lockstep::recal {

/// Throws Error(kConfig) unless a weight of this shape can have a mask of this kind. All kinds but
/// unstructured need 2 or more dimensions. N:M needs a number of inputs (dimension 1) that M
/// divides. The message names the parameter, its shape and the way out. Called when a recipe is
/// attached.
void check_mask_kind(const MaskKind& kind, std::string_view name, c10::IntArrayRef shape);

/// Throws Error(kConfig) unless 0 <= sparsity <= 1; for N:M at most 1 - N/M.
void check_mask_sparsity(const MaskKind& kind, double sparsity);

}  // namespace lockstep::recal
