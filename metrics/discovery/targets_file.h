#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace lockstep::metrics {

/// One process to be scraped.
struct Target {
  std::string address;                        ///< "node7:9464", as Prometheus shall call it
  std::map<std::string, std::string> labels;  ///< put on all its series: run, rank, node
};

/// The JSON of Prometheus' file_sd: a list of {"targets": [address], "labels": {...}}, in the order
/// given.
std::string targets_json(const std::vector<Target>& targets);

/// That JSON as a file, there as long as this object. Readers see a whole file or none. One rank of
/// a run keeps it.
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
