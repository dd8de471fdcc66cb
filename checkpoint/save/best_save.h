#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace lockstep::checkpoint {

/// Which save of a folder is the best one by some measure: the text file PREFIX.best beside the
/// saves, one line "1200 eval.accuracy 0.9731". It protects the save from removal, and a run that
/// goes on knows what to beat. Called by rank 0 alone.
struct BestSave {
  int64_t number = 0;
  std::string metric;
  double value = 0;
};

/// Written so that a reader sees the old line or the new one. `prefix` is DIR/model.ckpt.
void write_best(const std::string& prefix, const BestSave& best);
/// Nothing if there is no such file or it cannot be read as one: then nothing is protected, and a
/// warning says so.
std::optional<BestSave> read_best(const std::string& prefix);

}  // namespace lockstep::checkpoint
