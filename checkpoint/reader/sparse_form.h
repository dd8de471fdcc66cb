#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensors/state_list.h"

/// Tensors stored as the values that a mask keeps (docs/checkpoint_format.md, Sparse tensors). The
/// tensor of state key K has no entry under its name. It has _lockstep/sparse/K/values, the kept
/// values in order in one dimension, and _lockstep/sparse/K/form, a text.
namespace lockstep::checkpoint {

/// Returns K of _lockstep/sparse/K/form; nullopt for other names.
std::optional<std::string> key_of_sparse_form(std::string_view name);

struct SparseForm {
  std::vector<int64_t> shape;  ///< of the dense tensor
  std::string mask_name;       ///< index name of the tensor of mask bits

  int64_t num_elements() const;
};

/// Returns, for instance, "[64, 128] _lockstep/masks/fc/weight".
std::string text_of(const SparseForm& form);
/// Parses a form; nullopt unless text_of() gives exactly this text and the number of elements fits
/// 60 bits.
std::optional<SparseForm> parse_sparse_form(std::string_view text);

/// Returns how many of the items before `end` are kept.
int64_t kept_before(const uint8_t* bits, int64_t end);

/// Writes the elements of `range` of the dense tensor: kept ones from `packed`, zeros elsewhere.
/// packed[0] is the first kept element of the range. `items` is the address of element 0 of the
/// tensor. Widths are as in base/bits/bit_mask.h.
void unpack_range(const char* packed, const uint8_t* bits, const ElementRange& range,
                  int item_bytes, char* items);

}  // namespace lockstep::checkpoint
