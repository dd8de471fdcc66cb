// `lockstep ckpt diff`. Both sides are read through DenseView, so storage forms do not matter.
#include "checkpoint/tools/inspect.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "checkpoint/format/bundle_reader.h"
#include "checkpoint/format/object_graph.h"
#include "checkpoint/format/saved_values.h"
#include "checkpoint/format/tensor_type.h"
#include "checkpoint/tools/tensor_values.h"

namespace lockstep::checkpoint {
namespace {

/// Value of a checkpoint under one name.
struct Value {
  at::Tensor tensor;  ///< undefined for texts
  std::vector<std::string> texts;
  std::string form;
};

/// One side of the comparison.
class Side {
 public:
  explicit Side(const std::string& where) : reader_(save_at(where)), view_(&reader_) {}
  const std::string& prefix() const { return reader_.prefix(); }
  std::vector<std::string> names() const { return view_.names(); }

  std::optional<Value> value(const std::string& name) {
    if (!view_.contains(name)) return std::nullopt;
    Value value;
    if (view_.is_text(name)) {
      value.texts = view_.read_texts(name);
      value.form = type_and_shape(kStringType, reader_.find(name)->shape);
    } else if (const DenseTensor stored = *view_.find(name); !is_known_type(stored.dtype)) {
      // Types that we cannot read are compared by their size and checksum.
      value.texts = {fmt::format("{} {:08x}", stored.stored_bytes, stored.entry->masked_crc)};
      value.form = type_and_shape(stored.dtype, stored.shape);
    } else {
      value.tensor = view_.read(name);
      value.form =
          type_and_shape(type_number(value.tensor.scalar_type()).value_or(0), value.tensor.sizes());
    }
    return value;
  }

 private:
  BundleReader reader_;
  DenseView view_;
};

struct Row {
  std::string key;
  std::string verdict;
  std::string form_a, form_b;  ///< empty: the tensor is missing
  std::optional<TensorDifference> difference;
};

/// Compares one name: existence, form, then values.
Row row_of(const std::string& name, const std::optional<Value>& a, const std::optional<Value>& b) {
  Row row{.key = state_key(name).value_or(name)};
  if (a) row.form_a = a->form;
  if (b) row.form_b = b->form;
  if (!a || !b) {
    row.verdict = a ? "only_in_a" : "only_in_b";
  } else if (a->form != b->form) {
    row.verdict = "other_form";
  } else if (!a->tensor.defined()) {
    row.verdict = a->texts == b->texts ? "same" : "differs";
  } else {
    row.difference = compare(a->tensor, b->tensor);
    row.verdict = row.difference->is_same() ? "same" : "differs";
  }
  return row;
}

bool lies_under(const std::string& key, const std::string& folder) {
  return folder.empty() || key == folder || key.starts_with(folder + "/");
}

/// Returns the names of both sides that the options select.
std::vector<std::string> names_of_both(const Side& a, const Side& b, const DiffOptions& options) {
  const std::vector<std::string> in_a = a.names(), in_b = b.names();
  std::vector<std::string> chosen;
  std::ranges::set_union(in_a, in_b, std::back_inserter(chosen));
  std::erase_if(chosen, [&](const std::string& name) {
    return !lies_under(state_key(name).value_or(name), options.under);
  });
  if (chosen.empty() && !options.under.empty())
    throw Error(
        ExitCode::kUsage, "diff",
        fmt::format(
            "neither {} nor {} contains anything under '{}'; lockstep ckpt show prints the keys",
            a.prefix(), b.prefix(), options.under));
  return chosen;
}

/// Returns part / whole; 0 for an empty tensor.
double share(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::string number_json(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : fmt::format("\"{}\"", std::abs(value));
}

std::string or_null(const std::string& text) { return text.empty() ? "null" : json_string(text); }

std::string row_json(const Row& row) {
  std::string text =
      fmt::format(R"({{"key": {}, "verdict": "{}", "form_a": {}, "form_b": {})",
                  json_string(row.key), row.verdict, or_null(row.form_a), or_null(row.form_b));
  if (!row.difference)
    return text + R"(, "num_elements": null, "num_different": null, "max_difference": null, )"
                  R"("sparsity_a": null, "sparsity_b": null})";
  const TensorDifference& d = *row.difference;
  return text + fmt::format(R"(, "num_elements": {}, "num_different": {}, "max_difference": {}, )"
                            R"("sparsity_a": {}, "sparsity_b": {}}})",
                            d.num_elements, d.num_different, number_json(d.max_difference),
                            share(d.num_zeros_a, d.num_elements),
                            share(d.num_zeros_b, d.num_elements));
}

std::string verdict_text(const Row& row) {
  static const std::map<std::string, std::string> kTexts = {
      {"only_in_a", "only in A"}, {"only_in_b", "only in B"}, {"other_form", "other form"}};
  const auto found = kTexts.find(row.verdict);
  return found == kTexts.end() ? row.verdict : found->second;
}

std::string row_line(const Row& row, size_t width) {
  const std::string form = row.form_a == row.form_b || row.form_b.empty() ? row.form_a
                           : row.form_a.empty()                           ? row.form_b
                                                : row.form_a + ", in B " + row.form_b;
  std::string numbers = fmt::format("{:>14}  {:>14}  {:>8}  {:>8}", "", "", "", "");
  if (row.difference) {
    const TensorDifference& d = *row.difference;
    numbers =
        fmt::format("{:>14}  {:>14.6g}  {:>8.4f}  {:>8.4f}", d.num_different, d.max_difference,
                    share(d.num_zeros_a, d.num_elements), share(d.num_zeros_b, d.num_elements));
  }
  return fmt::format("{:<{}}  {:<10}  {}  {}\n", row.key, width, verdict_text(row), numbers, form);
}

std::string table(const Side& a, const Side& b, const std::vector<Row>& rows) {
  size_t width = 3;
  std::map<std::string, size_t> counts;
  for (const Row& row : rows) {
    width = std::max(width, row.key.size());
    ++counts[verdict_text(row)];
  }
  std::string text = fmt::format("A {}\nB {}\n{:<{}}  {:<10}  {:>14}  {:>14}  {:>8}  {:>8}  form\n",
                                 a.prefix(), b.prefix(), "key", width, "", "other elements",
                                 "max |A - B|", "zeros A", "zeros B");
  for (const Row& row : rows) text += row_line(row, width);
  std::vector<std::string> parts;
  for (const auto& [verdict, count] : counts) parts.push_back(fmt::format("{} {}", count, verdict));
  return text + fmt::format("{} tensors: {}\n", rows.size(), fmt::join(parts, ", "));
}

}  // namespace

Answer diff_saves(const std::string& where_a, const std::string& where_b,
                  const DiffOptions& options) {
  Side a(where_a), b(where_b);
  std::vector<Row> rows;
  for (const std::string& name : names_of_both(a, b, options))
    rows.push_back(row_of(name, a.value(name), b.value(name)));
  const bool equal =
      std::all_of(rows.begin(), rows.end(), [](const Row& row) { return row.verdict == "same"; });
  if (!options.json) return {table(a, b, rows), equal};
  std::vector<std::string> items;
  for (const Row& row : rows) items.push_back(row_json(row));
  return {fmt::format("{{\"a\": {}, \"b\": {}, \"equal\": {}, \"tensors\": [\n  {}\n]}}\n",
                      json_string(a.prefix()), json_string(b.prefix()), equal,
                      fmt::join(items, ",\n  ")),
          equal};
}

}  // namespace lockstep::checkpoint
