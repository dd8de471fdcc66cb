#pragma once

#include <optional>
#include <string>
#include <vector>

#include "coord/callback.h"
#include "coord/callback_types.h"
#include "python/python_args.h"
#include "python/value.h"

namespace lockstep::python {

/// Callback of a user: `callbacks: {mine: {type: python, path: my_callbacks.py, name: Mine}}`. Any
/// object with a method on_iteration_end, which gets each incoming key as a keyword argument:
///
///   class Mine:
///       incoming_keys = ["logits"]
///       generated_keys = ["classes"]
///       def on_iteration_end(self, logits):
///           return {"classes": logits.argmax(1)}
///
/// Tensors share memory with the other side. Texts are lists of str, nested maps are dicts. The
/// context is set as attributes of the object before each call (docs/callbacks.md).
///
/// Threads: as for any callback. Each call takes the interpreter's lock and releases it.
class PythonCallback final : public coord::Callback {
 public:
  /// Creates the object. what: its place in the run file, such as callbacks.mine. Throws
  /// Error(kConfig), with file and line, if Python raises; so does each call below. Also throws if
  /// keys are not texts, or if on_iteration_end does not accept them.
  PythonCallback(const PythonArgs& args, const std::string& what);

  std::vector<std::string> incoming_keys() const override { return incoming_; }
  std::vector<std::string> generated_keys() const override { return generated_; }
  coord::RunOn run_on() const override { return run_on_; }
  void begin() override { call_method("begin"); }
  void on_iteration_start() override { call_method("on_iteration_start"); }
  void on_epoch_end() override { call_method("on_epoch_end"); }
  /// Calls the user's method. None in Python becomes nullopt.
  std::optional<coord::DataMap> on_iteration_end(const coord::DataMap& data) override;
  void end() override { call_method("end"); }

 private:
  void call_method(const char* method);
  Value context_values() const;
  void write(const List& scalars) const;

  Object callback_;
  std::vector<std::string> incoming_, generated_;
  coord::RunOn run_on_ = coord::RunOn::kRank0;
};

/// Row of `python` in the table of callbacks.
coord::CallbackType python_callback_type();

}  // namespace lockstep::python
