#include "metrics/discovery/targets_file.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"

// Prometheus watches the file (file_sd). It disappears with the run, so that a finished run is no
// longer scraped.
namespace lockstep::metrics {

std::string targets_json(const std::vector<Target>& targets) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Target& target : targets)
    list.push_back({{"targets", {target.address}}, {"labels", target.labels}});
  // A run's name may contain any bytes, but JSON must be valid UTF-8.
  return list.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

TargetsFile::TargetsFile(std::filesystem::path path, const std::vector<Target>& targets)
    : path_(std::move(path)) {
  files::write_atomically(path_, targets_json(targets));
}

TargetsFile::~TargetsFile() {
  try {
    // A destructor must not throw; a stale file is replaced by the next run.
    files::remove_file(path_);
  } catch (const Error& fault) {
    log::warning("metrics", fault.what());
  }
}

}  // namespace lockstep::metrics
