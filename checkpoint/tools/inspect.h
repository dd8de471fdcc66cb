#pragma once

#include <string>

/// Answers of `lockstep ckpt` as text for stdout. They use neither ranks nor MPI.
namespace lockstep::checkpoint {

struct InspectOptions {
  bool json = false;
  bool values = false;  ///< show: with all values (JSON only)
};

struct Answer {
  std::string text;  ///< ends with a newline
  bool ok = true;    ///< false: defects were found; the process should exit with kBadData
};

/// Returns the prefix of the checkpoint that `where` means. For a folder, or a run's folder with
/// `checkpoints` in it, that is its newest complete one. Defects of newer ones are logged as
/// warnings. Otherwise it is `where` itself. Throws Error(kInputMissing, kBadData) if a folder has
/// none.
std::string save_at(const std::string& where);

/// Lists a folder's checkpoints, oldest first: number, tensors, shards, dense and stored bytes,
/// state. JSON: a list of {"prefix", "number", "tensors", "shards", "bytes", "dense_bytes",
/// "defect"}; "bytes" is the size of the shards.
Answer list_saves(const std::string& dir, const InspectOptions& options);

/// Shows every tensor of one checkpoint; tensors appear dense under their names, however they are
/// stored (checkpoint/format/saved_values.h). `where` is a folder (its newest complete checkpoint)
/// or a prefix with number.
///
/// JSON, in name order: {"prefix", "num_shards", "dense_bytes", "stored_bytes", "tensors":
/// [{"name", "key", "dtype", "shape", "shard", "offset", "size", "crc32c", "stored_bytes",
/// "sha256"}]}.
/// - key: the state key or null.
/// - size: bytes of the dense tensor.
/// - crc32c: the masked crc of the stored values in row-major order, 8 hex digits; null if slices
///   store them in another order.
/// - sha256: digest of the dense values' bytes in row-major order; for strings, of the concatenated
///   strings.
///
/// A sliced tensor has null as shard and offset, and "slices": [{"box", "shard", "offset", "size",
/// "crc32c"}]. A sparse tensor also has "mask", the name of its mask; its slices are those of its
/// kept values. Floating-point values have "sparsity", the share of zeros.
///
/// With `values`: "values", a flat list. Floats are in their shortest form that reads back equal,
/// and "nan", "inf", "-inf" are texts. Complex numbers are [re, im]. Strings that are not UTF-8 are
/// {"hex": ...}.
Answer show_save(const std::string& where, const InspectOptions& options);

/// Verifies every byte of one checkpoint (prefix with number) or of all checkpoints of a folder.
Answer verify_saves(const std::string& where, const InspectOptions& options);

/// Returns the prefix of the newest complete checkpoint; defects of newer ones are logged as
/// warnings.
Answer latest_save(const std::string& dir, const InspectOptions& options);

struct DiffOptions {
  bool json = false;
  std::string under = {};  ///< only keys that are this or are below it (model); empty: all
};

/// Compares two checkpoints tensor by tensor; slices, shards and masks make no difference. `a` and
/// `b` are folders (their newest complete checkpoints) or prefixes. `ok` is false if they differ.
///
/// JSON, in name order: {"a", "b", "equal", "tensors": [{"key", "verdict", "form_a", "form_b",
/// "num_elements", "num_different", "max_difference", "sparsity_a", "sparsity_b"}]}.
/// - key: the state key, or the name if there is none.
/// - verdict: same | differs | other_form | only_in_a | only_in_b.
/// - form_a, form_b: "float32 [2, 3]", null if the checkpoint lacks the tensor.
/// - the last five: null unless both are numbers of one form; see
///   checkpoint/tools/tensor_values.h; "nan" and "inf" as texts. Sparsity is the share of
///   zeros.
///
/// Throws Error(kInputMissing, kBadData) as BundleReader, kUsage if `under` matches nothing.
Answer diff_saves(const std::string& a, const std::string& b, const DiffOptions& options);

}  // namespace lockstep::checkpoint
