#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "data/data_options.h"
#include "dist/communicator.h"

namespace lockstep::daemon {

/// data::DatasetInputs::found of both data sets.
struct FoundData {
  std::string train, eval;
  /// Where the training data are not at hand (`lockstep eval`); else they follow from them.
  std::optional<int64_t> steps_per_epoch = std::nullopt;
  /// Spec of the training data if they are not at hand: data::DatasetInputs::trained of both sets.
  data::SampleSpec trained = {};
};

/// What rank 0 finds, on every rank: patterns are expanded, folders and stores listed once, however
/// many ranks there are. Collective. Throws rank 0's Error on every rank.
FoundData find_data(const data::DataOptions& options, dist::Communicator& control);

}  // namespace lockstep::daemon
