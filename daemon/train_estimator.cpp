#include "daemon/train_estimator.h"

#include "daemon/lockstepd.h"

namespace lockstep::train_estimator {
namespace {

constexpr const char* kName = "spec";

}  // namespace

int train(const MakeSpec& spec, const std::vector<std::string>& flags) {
  // The estimator becomes a row of the table, so lockstepd finds it like one of a plug-in.
  estimator::estimator_types().add({.name = kName, .value = spec});
  std::vector<std::string> words = {"lockstepd", "--set", std::string("estimator.name=") + kName};
  words.insert(words.end(), flags.begin(), flags.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return daemon::lockstepd_main(static_cast<int>(words.size()), argv.data());
}

}  // namespace lockstep::train_estimator
