#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/files/file_mapping.h"
#include "checkpoint/bundle/bundle_index.h"

namespace lockstep::checkpoint {

/// One place of a shard to be read and checked: a whole tensor or a slice of one. What is pointed
/// to must live as long as this.
struct PlaceRead {
  const files::Mapping* file = nullptr;
  const BundlePlace* place = nullptr;
  TensorBox box = {};  ///< of the tensor; the whole of it if it has no slices
  const std::vector<int64_t>* shape = nullptr;  ///< of the tensor
  int64_t item_bytes = 1;
  bool is_bool = false;
  /// Memory of the tensor's elements, row-major; null: nothing is wanted but the check.
  char* values = nullptr;
  /// Only these elements of the tensor are wanted; null: all.
  const std::vector<ElementRange>* held = nullptr;
};

/// What is wrong with a place, for an error text.
struct PlaceDefect {
  size_t item = 0;  ///< in the list
  std::string what;
};

/// "wrong crc32c (damaged): ..." with what was found and what was expected.
std::string wrong_crc_text(int64_t num_bytes, uint32_t found, uint32_t expected);

/// Fetches every place wholly and sums its crc; if all are right, copies what is wanted to
/// `values`, else gives the defects, lowest first, and has written nothing. Both are done in pieces
/// that several threads take from one list. All places must lie inside their files. `num_threads` 0
/// means work_threads.h's default. Throws Error(kIo), with nothing written.
std::vector<PlaceDefect> read_places(const std::vector<PlaceRead>& places, int num_threads);

}  // namespace lockstep::checkpoint
