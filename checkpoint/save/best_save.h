#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace lockstep::checkpoint {

/// Best checkpoint of a folder by some metric, stored in the text file PREFIX.best, one line: "1200
/// eval.accuracy 0.9731". It protects the checkpoint from removal, and a resumed run compares
/// against it. Called by rank 0 alone.
struct BestSave {
  int64_t number = 0;
  std::string metric;
  double value = 0;
};

/// Writes the file atomically: a reader sees the old line or the new one. `prefix` is
/// DIR/model.ckpt.
void write_best(const std::string& prefix, const BestSave& best);
/// Reads the file; nullopt if it is missing or unreadable. Then nothing is protected; an unreadable
/// file is logged as a warning.
std::optional<BestSave> read_best(const std::string& prefix);

}  // namespace lockstep::checkpoint
