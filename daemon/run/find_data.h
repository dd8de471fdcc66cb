#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "data/data_options.h"
#include "dist/communicator.h"

namespace lockstep::daemon {

/// Listing of both data sets, as in data::DatasetInputs::found.
struct FoundData {
  std::string train, eval;
  /// Set if the training data are not available (`lockstep eval`). Otherwise it follows from the
  /// data.
  std::optional<int64_t> steps_per_epoch = std::nullopt;
  /// Spec of the training data if they are not available: data::DatasetInputs::trained of both
  /// sets.
  data::SampleSpec trained = {};
};

/// Lists the data files on rank 0 and returns the result on every rank. Patterns are expanded, and
/// folders and stores listed, only once for all ranks. Collective. Throws rank 0's Error on every
/// rank.
FoundData find_data(const data::DataOptions& options, dist::Communicator& control);

}  // namespace lockstep::daemon
