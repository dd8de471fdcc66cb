#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

/// Flags of a run (docs/flags.md). Any source file of a network, a data set, a hook or another user
/// part can read them.
///
///   LOCKSTEP_FLAG(double, learning_rate);          // once, above the code that reads it
///   ... FLAGS_learning_rate.get() ...
///   ... flags::get<int64_t>("batch_size") ...
///
/// A flag is a name for a key of the run file. Its value comes from the merged settings: file,
/// environment, command line, else the default. Values are fixed after the ranks have compared
/// their settings, until the end of the run. So model(), input(), hooks and callbacks can read
/// them. read_flags(), loss(), metrics() and hooks() of an estimator run too early. Thread-safe.
namespace lockstep::flags {

/// Values as text by name; nullopt for a flag without a value (`None` in TensorFlow).
using Values = std::map<std::string, std::optional<std::string>, std::less<>>;

/// Returns the value of a flag (learning_rate), an estimator's flag (width), or a key of the run
/// file (optimizer.learning_rate). T: std::string, bool, int64_t, double. A list is one text,
/// separated by commas.
///
/// Throws Error(kUsage) before the run begins and for an unknown name (with the nearest one).
/// Throws it too for a flag without a value, or with a value that is not a T.
template <typename T>
T get(std::string_view name);

/// True if the flag has a value. Throws as get() for an unknown name and before the run begins.
bool has_value(std::string_view name);

/// Sets a flag in the program's code. It has priority over the run file, but not over environment
/// and command line. Call it in main(), or where a plug-in adds its rows, equally on all ranks.
/// Throws Error(kUsage) after the run has begun.
void set(const std::string& name, const std::string& value);
/// Returns the arguments of all set() calls in order.
const std::vector<std::pair<std::string, std::string>>& given();

/// True if the values of a run are fixed, so that get() works.
bool are_frozen();

/// Fixes the values for get() during its lifetime; set() is refused meanwhile. One at a time.
class Frozen {
 public:
  explicit Frozen(Values values);
  ~Frozen();
  Frozen(const Frozen&) = delete;
  Frozen& operator=(const Frozen&) = delete;
};

/// Implementations of get() by type.
const std::string& text_value(std::string_view name);
bool bool_value(std::string_view name);
int64_t integer_value(std::string_view name);
double number_value(std::string_view name);

template <typename T>
T get(std::string_view name) {
  if constexpr (std::is_same_v<T, bool>)
    return bool_value(name);
  else if constexpr (std::is_same_v<T, int64_t>)
    return integer_value(name);
  else if constexpr (std::is_same_v<T, double>)
    return number_value(name);
  else
    return text_value(name);
}

/// Type of the constant that LOCKSTEP_FLAG declares.
template <typename T>
class Flag {
 public:
  constexpr explicit Flag(const char* name) : name_(name) {}
  T get() const { return flags::get<T>(name_); }

 private:
  const char* name_;
};

}  // namespace lockstep::flags

/// Declares FLAGS_<name>, a name for a flag in this scope. It does not create a flag.
#define LOCKSTEP_FLAG(Type, name) \
  [[maybe_unused]] constexpr ::lockstep::flags::Flag<Type> FLAGS_##name(#name)
