#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace lockstep::metrics {

/// Process to scrape.
struct Target {
  std::string address;                        ///< "node7:9464", as Prometheus must address it
  std::map<std::string, std::string> labels;  ///< added to all its series: run, rank, node
};

/// Returns the JSON of Prometheus' file_sd: a list of {"targets": [address], "labels": {...}}, in
/// the given order.
std::string targets_json(const std::vector<Target>& targets);

/// File with that JSON, which exists as long as this object. Readers see a complete file or none.
/// One rank of a run owns it.
class TargetsFile {
 public:
  /// Replaces a file left by an earlier run. Throws as files::write_atomically.
  TargetsFile(std::filesystem::path path, const std::vector<Target>& targets);
  ~TargetsFile();  // removes the file; a failure is only logged
  TargetsFile(const TargetsFile&) = delete;
  TargetsFile& operator=(const TargetsFile&) = delete;

 private:
  const std::filesystem::path path_;
};

}  // namespace lockstep::metrics
