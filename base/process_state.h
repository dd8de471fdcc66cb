#pragma once

namespace lockstep {

/// State that lives as long as the process, with the function that resets it to that of a new
/// process. A server of jobs calls all of them before each job, so that no job sees another's
/// state. Define it next to the variable, at namespace scope:
///
///   const ProcessState counts("counts of log lines", [] { count_anew(); });
///
/// tools/check_rules.py compares the variables that live as long as the process with these.
class ProcessState {
 public:
  using Reset = void (*)();

  ProcessState(const char* name, Reset reset) noexcept;
  ProcessState(const ProcessState&) = delete;
  ProcessState& operator=(const ProcessState&) = delete;

  /// Calls every reset function, in no particular order. Main thread, while no job runs.
  static void begin_job();

 private:
  const char* const name_;  ///< for people with a debugger
  const Reset reset_;
  const ProcessState* const next_;
};

}  // namespace lockstep
