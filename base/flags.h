#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

/// The flags of a run (docs/flags.md), to be read from any source file of a network, a data set, a
/// hook or another part of one's own.
///
///   LOCKSTEP_FLAG(double, learning_rate);          // once, above the code that reads it
///   ... FLAGS_learning_rate.get() ...
///   ... flags::get<int64_t>("batch_size") ...
///
/// A flag is a name for a key of the run file, so its value is that of the merged settings: file,
/// environment, command line, else the default. Values are fixed once the ranks have compared their
/// settings, and stay to the end of the run: model(), input(), hooks and callbacks read them;
/// read_flags(), loss(), metrics() and hooks() of an estimator come too early. Any thread may read.
namespace lockstep::flags {

/// By name, as text; nothing where a flag has no value (`None` in TensorFlow).
using Values = std::map<std::string, std::optional<std::string>, std::less<>>;

/// The value of a flag (learning_rate), of a flag of the estimator (width), or of a key of the run
/// file (optimizer.learning_rate). T: std::string, bool, int64_t, double. A list is one text with
/// commas between.
///
/// Throws Error(kUsage): before the run begins; for an unknown name, with the nearest; for a flag
/// that has no value; for a value that is no T.
template <typename T>
T get(std::string_view name);

/// Whether the flag has a value. Throws as get() for an unknown name, and before the run begins.
bool has_value(std::string_view name);

/// Gives a flag a value in the program's code: it stands above the run file and below environment
/// and command line. In main(), or where a plug-in adds its rows; the same on all ranks. Throws
/// Error(kUsage) once the run has begun.
void set(const std::string& name, const std::string& value);
/// What set() was given, in this order.
const std::vector<std::pair<std::string, std::string>>& given();

/// Whether the values of a run are fixed now, so that get() answers.
bool are_frozen();

/// While it lives, get() reads these values and set() is refused. One at a time.
class Frozen {
 public:
  explicit Frozen(Values values);
  ~Frozen();
  Frozen(const Frozen&) = delete;
  Frozen& operator=(const Frozen&) = delete;
};

/// get() of each type.
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

/// What LOCKSTEP_FLAG declares.
template <typename T>
class Flag {
 public:
  constexpr explicit Flag(const char* name) : name_(name) {}
  T get() const { return flags::get<T>(name_); }

 private:
  const char* name_;
};

}  // namespace lockstep::flags

/// Declares FLAGS_<name>, a name for a flag in this scope; it makes no new flag.
#define LOCKSTEP_FLAG(Type, name) \
  [[maybe_unused]] constexpr ::lockstep::flags::Flag<Type> FLAGS_##name(#name)
