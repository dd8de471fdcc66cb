#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "metrics/http/http_server.h"

namespace lockstep::metrics {

/// A rank, and where its page is.
struct RankSource {
  int rank = 0;
  std::string node;
  std::string address;      ///< "n1:9465"; empty: it has none
  bool is_scraped = false;  ///< by Prometheus; the others' pages are shown by one that is
  std::string process;      ///< id that its targets.json names (ExpositionOptions)
};

/// The rank that shows the page of `source`: itself where it is scraped; else one of its node, the
/// nearest before it; else the first of all. `ranks` holds all, at least one of them scraped.
int rank_that_shows(const RankSource& source, const std::vector<RankSource>& ranks);

/// Answers for other ranks too: asks each for its page, those that answer in time are put together
/// with this process' own. On a thread of its own.
///
///   /metrics            the pages of all, each series with the labels `rank` and `node`
///   /live.json?rank=R   that of rank R
class RankPages final : public LaterHandler {
 public:
  /// What this process answers by itself; `note_missing` gets how many of the others did not
  /// answer, before the page of a rank that asks them is made. Both run on the thread.
  RankPages(HttpHandler own, std::function<void(int)> note_missing);
  ~RankPages() override;
  RankPages(const RankPages&) = delete;
  RankPages& operator=(const RankPages&) = delete;

  /// From now on. `token` opens the others' pages, `own.address` is not used.
  void gather_from(RankSource own, std::vector<RankSource> others, std::string token);

  bool ask(std::string_view target, const Reply& reply) override;
  void stop() override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::metrics
