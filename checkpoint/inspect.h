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

/// The prefix of the save that `where` means: of a folder its newest complete save (defects of
/// newer ones as warnings), else `where` itself. Throws Error(kInputMissing, kBadData) if a folder
/// holds none.
std::string save_at(const std::string& where);

/// All saves of a folder, oldest first: number, tensors, shards, bytes, state.
Answer list_saves(const std::string& dir, const InspectOptions& options);

/// Every tensor of one save. `where` is a folder (its newest complete save) or a prefix with
/// number. JSON: {"prefix", "num_shards", "tensors": [{"name", "key", "dtype", "shape", "shard",
/// "offset", "size", "crc32c", "sha256"}]}, in name order; key is the state key or null. crc32c is
/// the masked crc of the file, 8 hex digits; sha256 runs over the values' bytes in row-major order,
/// for strings over the strings one after the other. With `values`: "values", a flat list; floats
/// in their shortest form that reads back equal, "nan", "inf", "-inf" as texts, complex numbers as
/// [re, im], strings that are not UTF-8 as {"hex": ...}.
Answer show_save(const std::string& where, const InspectOptions& options);

/// Reads every byte of one save (prefix with number) or of all saves of a folder.
Answer verify_saves(const std::string& where, const InspectOptions& options);

/// The prefix of the newest complete save; defects of newer ones as warnings.
Answer latest_save(const std::string& dir, const InspectOptions& options);

}  // namespace lockstep::checkpoint
