#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "metrics/http/http_server.h"

/// Pages of several ranks at one address, and the file of targets for Prometheus.
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

/// Rank and the address of its page.
struct RankSource {
  int rank = 0;
  std::string node;
  std::string address;      ///< "n1:9465"; empty: no page
  bool is_scraped = false;  ///< by Prometheus; a scraped rank serves the pages of the others
  std::string process;      ///< id in its targets.json (ExpositionOptions)
};

/// Returns the rank that serves the page of `source`: itself if it is scraped. Otherwise the
/// nearest preceding scraped rank of its node, or the first scraped rank of all. `ranks` contains
/// all ranks; at least one is scraped.
int rank_that_shows(const RankSource& source, const std::vector<RankSource>& ranks);

/// Answers for other ranks too, on a separate thread. Requests each rank's page and merges those
/// that arrive in time with this process' own.
///
///   /metrics            all pages, each series with the labels `rank` and `node`
///   /live.json?rank=R   the data of rank R
class RankPages final : public LaterHandler {
 public:
  /// `own`: answers for this process. `note_missing` gets the number of ranks that did not answer,
  /// before the merged page is generated. Both run on the object's thread.
  RankPages(HttpHandler own, std::function<void(int)> note_missing);
  ~RankPages() override;
  RankPages(const RankPages&) = delete;
  RankPages& operator=(const RankPages&) = delete;

  /// Sets the ranks to request. `token` grants access to their pages; `own.address` is not used.
  void gather_from(RankSource own, std::vector<RankSource> others, std::string token);

  bool ask(const HttpRequest& request, const Reply& reply) override;
  void stop() override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::metrics
