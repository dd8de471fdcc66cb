#include "metrics/series_table.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <regex>
#include <set>

#include <gmock/gmock.h>
#include <prometheus/registry.h>

#include "base/error.h"
#include "full_page.h"
#include "metrics/recipe_metrics.h"
#include "parsed_page.h"

namespace lockstep::metrics {
namespace series_table_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using tests::Page;
using tests::page_of;
using tests::record_everything;
using tests::some_facts;

/// Rows of the table that a rank shall show.
std::vector<SeriesInfo> rows_of(bool is_root) {
  std::vector<SeriesInfo> rows(rank_series().begin(), rank_series().end());
  if (is_root) rows.insert(rows.end(), run_series().begin(), run_series().end());
  std::erase_if(rows, [](const SeriesInfo& row) { return row.presence == SeriesInfo::kNative; });
  return rows;
}

/// Label names that stand on a page, by family.
std::map<std::string, std::set<std::string>> labels_on(const Page& page) {
  std::map<std::string, std::set<std::string>> result;
  const std::regex label("[{,](\\w+)=\"");
  for (const auto& [series, value] : page.values) {
    std::string name = series.substr(0, series.find('{'));
    if (!page.types.contains(name))
      name = std::regex_replace(name, std::regex("_(bucket|sum|count)$"), "");
    for (std::sregex_iterator it(series.begin(), series.end(), label), end; it != end; ++it)
      if ((*it)[1] != "le") result[name].insert((*it)[1]);
  }
  return result;
}

using Types = std::map<std::string, std::string>;  ///< by name of the series

/// Entries that `other` lacks or has otherwise.
Types only_in(const Types& types, const Types& other) {
  Types result;
  std::set_difference(types.begin(), types.end(), other.begin(), other.end(),
                      std::inserter(result, result.end()));
  return result;
}

TEST(SeriesTable, EverySeriesIsInTheTableAndEveryRowOnThePage) {
  for (const bool is_root : {true, false}) {
    TrainingMetrics all(some_facts(is_root));
    const HttpMetrics http(all.registry());
    record_everything(&all);
    const Page page = page_of(all);
    Types wanted;
    for (const SeriesInfo& row : rows_of(is_root)) wanted[row.name] = kind_name(row.kind);
    const char* rank = is_root ? "root" : "another rank";
    EXPECT_THAT(only_in(page.types, wanted), IsEmpty())
        << "not so in metrics/series_table.cpp: " << rank;
    EXPECT_THAT(only_in(wanted, page.types), IsEmpty()) << "not so on the page: " << rank;
    auto labels = labels_on(page);
    for (const SeriesInfo& row : rows_of(is_root)) {
      std::set<std::string> named;
      const std::string text = row.labels;
      const std::regex word("\\w+");
      for (std::sregex_iterator it(text.begin(), text.end(), word), end; it != end; ++it)
        named.insert(it->str());
      EXPECT_EQ(labels[row.name], named) << row.name;
      EXPECT_THAT(row.help, testing::EndsWith(".")) << row.name;
    }
  }
}

TEST(SeriesTable, TheProtobufPageHoldsMore) {
  TrainingMetrics all(some_facts());
  record_everything(&all);
  const std::string page = all.page(PageFormat::kProtobuf);
  for (const SeriesInfo& row : rank_series()) {
    if (row.presence != SeriesInfo::kNative) continue;
    EXPECT_THAT(page, HasSubstr(row.name));
    EXPECT_THAT(all.page(), Not(HasSubstr(row.name)));
    EXPECT_THAT(all.page(PageFormat::kOpenMetrics), Not(HasSubstr(row.name)));
  }
}

TEST(SeriesTable, LateSeriesAreAbsentUntilTheyAreFed) {
  const TrainingMetrics all(some_facts());
  const Page page = page_of(all);
  for (const SeriesInfo& row : rows_of(true)) {
    if (std::string_view(row.name).starts_with("lockstep_http_")) continue;  // the server's
    EXPECT_EQ(page.types.contains(row.name), row.presence == SeriesInfo::kAlways) << row.name;
  }
}

TEST(SeriesTable, AnUnknownNameIsABug) { EXPECT_THROW(series_info("lockstep_steps"), Error); }

TEST(SeriesTable, ItsReferenceHoldsEachRowOnce) {
  const std::string text = series_reference();
  EXPECT_THAT(text, HasSubstr("\n| `lockstep_rank_info` | gauge | 1 | `rank`, `local_rank`, `node` "
                              "| Number of this rank in the world |\n"));
  EXPECT_THAT(text, HasSubstr("\n| `lockstep_train_loss` | gauge | - |  | Training loss, "
                              "mean over ranks, last logged; late |\n"));
  const size_t lines_of_heads = 9;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'),
            static_cast<long>(rank_series().size() + run_series().size() + lines_of_heads));
}

TEST(SeriesTable, SeriesStayWithinTheirBudgetWhateverTheRecipe) {
  const auto count = [](bool is_root, size_t num_modifiers) {
    auto facts = some_facts(is_root);
    while (facts.modifiers.size() < num_modifiers)
      facts.modifiers.push_back("more/" + std::to_string(facts.modifiers.size()));
    TrainingMetrics all(facts);
    const HttpMetrics http(all.registry());
    record_everything(&all);
    for (size_t i = some_facts(is_root).modifiers.size(); i < facts.modifiers.size(); ++i) {
      all.recipe().set_target_sparsity(i, 0.5);
      all.recipe().record_modifier_update(i);
    }
    return page_of(all).values.size();
  };
  EXPECT_LE(count(false, 0), 120u);
  EXPECT_LE(count(true, 0), 200u)
      << "the page is full: CONTRIBUTING.md, a Prometheus series, says what to do";
  EXPECT_EQ(count(false, 300), count(false, 0));
  EXPECT_LE(count(true, 300), count(true, 0) + 2 * size_t{16});
}

TEST(SeriesTable, OfManyParameterGroupsTheFirstAreShown) {
  prometheus::Registry registry;
  std::vector<std::string> groups;
  for (int i = 0; i < 40; ++i) groups.push_back("group " + std::to_string(i));
  RecipeMetrics recipe(registry, {}, groups);
  recipe.set_rates(std::vector<GroupSample>(40, {.learning_rate = 0.5}));
  EXPECT_EQ(recipe.learning_rate(), 0.5);
  for (const auto& family : registry.Collect()) EXPECT_LE(family.metric.size(), 8u) << family.name;
}

}  // namespace series_table_test
}  // namespace lockstep::metrics
