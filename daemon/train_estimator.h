#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "estimator/estimator_spec.h"

/// Training of an estimator by the user's own program.
namespace lockstep::train_estimator {

/// Function that creates an estimator, a new object at each call.
using MakeSpec = std::function<std::unique_ptr<EstimatorSpec>()>;

/// Trains and evaluates the estimator as `lockstepd --estimator=LIB` does with one of a plug-in.
/// Flags and defaults (docs/flags.md), checkpoints, resume, metrics and exit codes are the same.
/// One process is one rank. The same call trains on one rank or on as many as mpirun starts.
///
///   class Moons : public lockstep::EstimatorSpec { ... };
///   int main(int argc, char** argv) {
///     return lockstep::train_estimator::train(lockstep::train_estimator::spec_of<Moons>(),
///                                             {argv + 1, argv + argc});
///   }
///
/// `flags`: words of a command line, {"--model_dir", "models", "--batch_size=64"}. Flags of
/// read_flags() follow after "--". Without --train_metadata the estimator's own data are used. Call
/// it once per process. Returns the exit code for main(). Does not throw.
int train(const MakeSpec& spec, const std::vector<std::string>& flags);

/// Returns a MakeSpec for a class that has a default constructor.
template <typename Spec>
MakeSpec spec_of() {
  return [] { return std::make_unique<Spec>(); };
}

}  // namespace lockstep::train_estimator
