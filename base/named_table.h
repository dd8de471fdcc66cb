#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"

namespace lockstep {

/// Table of things that one place of a run file or recipe can choose by name: networks, data sets,
/// modifiers. A program that embeds Lockstep adds its own rows before it reads the file:
///
///   model::model_types().add({.name = "my_net", .read = read_my_net});
///
/// Rows remain for the life of the process. Rows of plug-ins and estimators remain for one run, see
/// keep_first(). Not thread-safe: add rows before the first run begins. `Row` has a member `name`
/// and a std::function, called `read` or `value`.
template <typename Row>
class NamedTable {
 public:
  /// `kind` is for messages, such as "network".
  explicit NamedTable(std::string kind) : kind_(std::move(kind)) {}

  /// Adds a row. A repeated name or a row without its function is a fault. The next reader of the
  /// table gets it, so that a program can add rows in main(), where no caller catches errors.
  /// `file` and `line` are the caller's; clang-tidy 14 does not know std::source_location.
  void add(Row row, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    std::string from = fmt::format("{}:{}", file, line);
    if (fault_.empty()) fault_ = fault_of(row, from);
    entries_.push_back({std::move(row), std::move(from)});
  }

  /// Adds a row of `owner`, or replaces this owner's row of the same name. Throws Error(kConfig) if
  /// another owner has that name.
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

  /// True if put() has added a row of this name for `owner`.
  bool belongs_to(std::string_view name, std::string_view owner) const {
    for (const Entry& entry : entries_)
      if (entry.row.name == name) return entry.origin == owner;
    return false;
  }

  size_t num_rows() const { return entries_.size(); }
  /// Removes all but the first `num_rows` rows, and a fault that came with the others. Only while
  /// no run is in progress.
  void keep_first(size_t num_rows) {
    while (entries_.size() > num_rows) {
      entries_.pop_back();
      fault_.clear();
    }
  }

  /// Returns the row, null if there is none. Like names() and rows(), throws Error(kConfig) with
  /// the origins if two rows have one name or one has no function.
  const Row* find(std::string_view name) const {
    require_sound();
    for (const Entry& entry : entries_)
      if (entry.row.name == name) return &entry.row;
    return nullptr;
  }

  /// Returns the rows in the order of their addition.
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
    std::string origin;  ///< file:line, or the owner
  };

  /// Returns the fault as text; empty if the row may be added.
  std::string fault_of(const Row& row, const std::string& from) const {
    if (!has_function(row))
      return fmt::format("'{}' of {} has no function: add one to the row", row.name, from);
    for (const Entry& other : entries_)
      if (other.row.name == row.name) return clash(other, from);
    return "";
  }

  static std::string clash(const Entry& other, const std::string& from) {
    return fmt::format("two rows have the name '{}': one of {}, one of {}; rename one of them",
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
  std::deque<Entry> entries_;  // a deque: rows keep their addresses
  std::string fault_;          // of the first row that must not have been added
};

}  // namespace lockstep
