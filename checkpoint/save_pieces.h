#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/state_list.h"

namespace lockstep::checkpoint {

/// One tensor or text of a save, under its name in the index.
struct SavePiece {
  std::string name;
  at::Tensor tensor;  ///< undefined for a text
  const std::string* text = nullptr;
};

/// All pieces of a save: the caller's state, then what TensorFlow wants beside it. Keeps the
/// additions' memory.
class SavePieces {
 public:
  /// Throws Error(kConfig) for a tensor that has no form in a save; Error(kBug) for bad or repeated
  /// keys.
  SavePieces(const StateList& state, int64_t number);
  SavePieces(const SavePieces&) = delete;
  SavePieces& operator=(const SavePieces&) = delete;

  const std::vector<SavePiece>& list() const { return list_; }
  /// Which rank writes each of them.
  std::vector<int> owners(int world_size) const;
  /// Names, types and shapes in a few words, equal on two ranks only if those are.
  std::string summary() const;

 private:
  int64_t number_;
  std::string graph_;
  std::vector<SavePiece> list_;
};

}  // namespace lockstep::checkpoint
