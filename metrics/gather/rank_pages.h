#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "metrics/http/http_server.h"

namespace lockstep::metrics {

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

  bool ask(std::string_view target, const Reply& reply) override;
  void stop() override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::metrics
