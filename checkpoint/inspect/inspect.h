#pragma once

#include <string>

/// The answers of `lockstep ckpt`, as text for stdout. No ranks, no MPI.
namespace lockstep::checkpoint {

struct InspectOptions {
  bool json = false;
  bool values = false;  ///< show: with every value (JSON only)
};

struct Answer {
  std::string text;  ///< ends with a newline
  bool ok = true;    ///< false: defects were found, the process should end with kBadData
};

/// The prefix of the save that `where` means: of a folder, or of `checkpoints` in a run's, its
/// newest complete save (defects of newer ones as warnings), else `where` itself. Throws
/// Error(kInputMissing, kBadData) if a folder holds none.
std::string save_at(const std::string& where);

/// All saves of a folder, oldest first: number, tensors, shards, dense and stored bytes, state.
/// JSON: a list of {"prefix", "number", "tensors", "shards", "bytes", "dense_bytes", "defect"};
/// bytes are those of the shards.
Answer list_saves(const std::string& dir, const InspectOptions& options);

/// Every tensor of one save, dense ones under their names however they are stored
/// (checkpoint/reader/dense_view.h). `where` is a folder (its newest complete save) or a prefix
/// with number. JSON: {"prefix", "num_shards", "dense_bytes", "stored_bytes", "tensors": [{"name",
/// "key", "dtype", "shape", "shard", "offset", "size", "crc32c", "stored_bytes", "sha256"}]}, in
/// name order; key is the state key or null. A tensor in slices has null as shard and offset and
/// "slices": [{"box", "shard", "offset", "size", "crc32c"}]; a sparse one besides "mask", the name
/// of its mask, and the slices are those of its kept values. size is that of the dense tensor.
/// crc32c is the masked crc of the stored values in row-major order, 8 hex digits, or null where
/// slices have them in another order; sha256 runs over the dense values' bytes in row-major order,
/// for strings over the strings one after the other. Numbers with a fraction have "sparsity", the
/// share of zeros. With `values`: "values", a flat list; floats in their shortest form that reads
/// back equal, "nan", "inf", "-inf" as texts, complex numbers as [re, im], strings that are not
/// UTF-8 as {"hex": ...}.
Answer show_save(const std::string& where, const InspectOptions& options);

/// Reads every byte of one save (prefix with number) or of all saves of a folder.
Answer verify_saves(const std::string& where, const InspectOptions& options);

/// The prefix of the newest complete save; defects of newer ones as warnings.
Answer latest_save(const std::string& dir, const InspectOptions& options);

}  // namespace lockstep::checkpoint
