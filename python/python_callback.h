#pragma once

#include <optional>
#include <string>
#include <vector>

#include "coord/callback.h"
#include "coord/callback_types.h"
#include "python/python_args.h"
#include "python/value.h"

namespace lockstep::python {

/// `callbacks: {mine: {type: python, path: my_callbacks.py, name: Mine}}`: any object of the user's
/// with a method on_iteration_end, which gets each incoming key as a keyword argument:
///
///   class Mine:
///       incoming_keys = ["logits"]
///       generated_keys = ["classes"]
///       def on_iteration_end(self, logits):
///           return {"classes": logits.argmax(1)}
///
/// Tensors share their memory with the other side, texts are lists of str, nested maps dicts. The
/// context stands in attributes of the object, set before each call (docs/callbacks.md).
///
/// Threads: as any callback; each call takes the interpreter's lock, and none is held between them.
class PythonCallback final : public coord::Callback {
 public:
  /// `what`: its place in the run file, callbacks.mine. Throws Error(kConfig) with file and line,
  /// as each call below does, if Python raises; if keys are not texts, or on_iteration_end does not
  /// take them.
  PythonCallback(const PythonArgs& args, const std::string& what);

  std::vector<std::string> incoming_keys() const override { return incoming_; }
  std::vector<std::string> generated_keys() const override { return generated_; }
  coord::RunOn run_on() const override { return run_on_; }
  void begin() override { call_method("begin"); }
  void on_iteration_start() override { call_method("on_iteration_start"); }
  void on_epoch_end() override { call_method("on_epoch_end"); }
  /// None is nothing.
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

/// The row of `python` in the table of callbacks.
coord::CallbackType python_callback_type();

}  // namespace lockstep::python
