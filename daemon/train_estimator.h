#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "estimator/estimator_spec.h"

/// An estimator trained by a program of one's own.
namespace lockstep::train_estimator {

/// Makes one estimator, a new object at each call.
using MakeSpec = std::function<std::unique_ptr<EstimatorSpec>()>;

/// Trains and evaluates the estimator as `lockstepd --estimator=LIB` does one of a plug-in: with
/// the flags and their defaults (docs/flags.md), saves, resume, metrics and exit codes. One process
/// is one rank; the same call trains on one rank or on as many as mpirun starts.
///
///   class Moons : public lockstep::EstimatorSpec { ... };
///   int main(int argc, char** argv) {
///     return lockstep::train_estimator::train(lockstep::train_estimator::spec_of<Moons>(),
///                                             {argv + 1, argv + argc});
///   }
///
/// `flags`: words of a command line, {"--model_dir", "models", "--batch_size=64"}; those of
/// read_flags() stand behind "--". Without --train_metadata, data are the estimator's own. Once a
/// process. Returns the exit code for main(); does not throw.
int train(const MakeSpec& spec, const std::vector<std::string>& flags);

/// Makes objects of a class that needs no arguments.
template <typename Spec>
MakeSpec spec_of() {
  return [] { return std::make_unique<Spec>(); };
}

}  // namespace lockstep::train_estimator
