#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/files/large_files.h"
#include "checkpoint/format/bundle_index.h"

/// Reads of a shard by several threads, with checks of the crcs.
namespace lockstep::checkpoint {

/// Default number of reader threads: one per core that this process may use, at most 8. Above that,
/// memory is the limit. From a store it is 8, since threads wait for answers.
int default_num_threads(bool is_remote = false);

/// Calls use(item) once for each item below num_items, lower items first. At most `num_threads`
/// threads run at a time, including the caller's. Returns after all have ended. If calls throw, no
/// further item starts, and the error of the lowest failed item is rethrown.
void for_each_on_threads(size_t num_items, int num_threads,
                         const std::function<void(size_t item)>& use);

/// Copies like std::memcpy. Large copies use non-temporal stores, which do not read the target's
/// memory first. That saves a third of the memory traffic.
void copy_past_cache(char* to, const char* from, int64_t num_bytes);

/// One place of a shard to read and check: a whole tensor or a slice. The pointed-to objects must
/// outlive this.
struct PlaceRead {
  const std::string* name = nullptr;  ///< of the tensor, for messages
  const files::Mapping* file = nullptr;
  const BundlePlace* place = nullptr;
  TensorBox box = {};  ///< of the tensor; empty, meaning the whole, if it has no slices
  const std::vector<int64_t>* shape = nullptr;  ///< of the tensor
  int64_t item_bytes = 1;
  bool is_bool = false;
  /// Memory of the tensor's elements, row-major; null: only check.
  char* values = nullptr;
  /// Elements of the tensor to copy; null: all.
  const std::vector<ElementRange>* held = nullptr;
};

/// Defect of a place, for an error text.
struct PlaceDefect {
  size_t item = 0;  ///< index in the list of places
  std::string what;
};

/// Returns "wrong crc32c (damaged): ..." with the found and the expected value.
std::string wrong_crc_text(int64_t num_bytes, uint32_t found, uint32_t expected);

/// Reads every place entirely and computes its crc. If all are correct, copies the wanted elements
/// to `values`. Otherwise returns the defects, lowest first, and has written nothing. Several
/// threads take pieces of both passes from one list. All places must be inside their files.
/// Throws Error(kIo) with nothing written. `is_remote`: the files are of a store.
std::vector<PlaceDefect> read_places(const std::vector<PlaceRead>& places, int num_threads,
                                     bool is_remote);

}  // namespace lockstep::checkpoint
