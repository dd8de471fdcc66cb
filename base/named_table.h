#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"

namespace lockstep {

/// Table of what can be chosen by name in one place of a run file or recipe: networks, data sets,
/// modifiers. A program that embeds Lockstep adds rows of its own before it reads the file:
///
///   model::model_types().add({.name = "my_net", .read = read_my_net});
///
/// Rows stay for the life of the process, those of plug-ins and estimators for a run: see
/// keep_first(). Not thread-safe: add rows before the first run begins.
/// `Row` has a member `name` and a std::function, called `read` or `value`.
template <typename Row>
class NamedTable {
 public:
  /// `kind`: for messages, "network".
  explicit NamedTable(std::string kind) : kind_(std::move(kind)) {}

  /// A second row of one name is a fault, and so is a row without its function: whoever reads the
  /// table next is told of it, so that a program may add rows in main(), where nobody catches.
  /// file, line: of the call; std::source_location would do, if clang-tidy 14 knew it.
  void add(Row row, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    std::string from = fmt::format("{}:{}", file, line);
    if (fault_.empty()) fault_ = fault_of(row, from);
    entries_.push_back({std::move(row), std::move(from)});
  }

  /// Adds a row that belongs to `owner`, or puts it in the place of the row of this owner and name.
  /// Throws Error(kConfig) if another owner has that name.
  void put(Row row, const std::string& owner) {
    for (Entry& entry : entries_) {
      if (entry.row.name != row.name) continue;
      if (entry.origin != owner) throw Error(ExitCode::kConfig, kind_, clash(entry, owner));
      entry.row = std::move(row);
      return;
    }
    if (fault_.empty()) fault_ = fault_of(row, owner);
    entries_.push_back({std::move(row), owner});
  }

  /// Whether there is a row of this name that put() has added for `owner`.
  bool belongs_to(std::string_view name, std::string_view owner) const {
    for (const Entry& entry : entries_)
      if (entry.row.name == name) return entry.origin == owner;
    return false;
  }

  size_t num_rows() const { return entries_.size(); }
  /// Removes the rows that were added after the first `num_rows`, and a fault that came with them.
  /// While no run is under way.
  void keep_first(size_t num_rows) {
    while (entries_.size() > num_rows) {
      entries_.pop_back();
      fault_.clear();
    }
  }

  /// Null where there is none. Like names() and rows(), throws Error(kConfig), which names the
  /// origins, if two rows have one name or one has no function.
  const Row* find(std::string_view name) const {
    require_sound();
    for (const Entry& entry : entries_)
      if (entry.row.name == name) return &entry.row;
    return nullptr;
  }

  /// In the order in which they were added.
  std::vector<const Row*> rows() const {
    require_sound();
    std::vector<const Row*> all;
    for (const Entry& entry : entries_) all.push_back(&entry.row);
    return all;
  }

  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const Row* row : rows()) all.emplace_back(row->name);
    return all;
  }

 private:
  struct Entry {
    Row row;
    std::string origin;  ///< file:line
  };

  /// Text; empty for a row that may be added.
  std::string fault_of(const Row& row, const std::string& from) const {
    if (!has_function(row))
      return fmt::format("'{}' of {} has no function: give the row one", row.name, from);
    for (const Entry& other : entries_)
      if (other.row.name == row.name) return clash(other, from);
    return "";
  }

  static std::string clash(const Entry& other, const std::string& from) {
    return fmt::format("two are called '{}': one of {}, one of {}; give one of them another name",
                       other.row.name, other.origin, from);
  }

  static bool has_function(const Row& row) {
    if constexpr (requires { row.value; })
      return static_cast<bool>(row.value);
    else
      return static_cast<bool>(row.read);
  }

  void require_sound() const {
    if (!fault_.empty()) throw Error(ExitCode::kConfig, kind_, fault_);
  }

  std::string kind_;
  std::deque<Entry> entries_;  // rows stay where they are
  std::string fault_;          // of the first row that should not have been added
};

}  // namespace lockstep
