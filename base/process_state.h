#pragma once

namespace lockstep {

/// One piece of state that lives as long as the process, with the function that makes it what it is
/// in a new process. A server of jobs calls all of them before each job, so that no job sees what
/// another one left. Define it beside the variable, at namespace scope:
///
///   const ProcessState counts("counts of log lines", [] { count_anew(); });
///
/// tools/check_rules.py compares variables that live as long as the process with these.
class ProcessState {
 public:
  using Reset = void (*)();

  ProcessState(const char* name, Reset reset) noexcept;
  ProcessState(const ProcessState&) = delete;
  ProcessState& operator=(const ProcessState&) = delete;

  /// Calls every reset, in no particular order. Main thread, while no job runs.
  static void begin_job();

 private:
  const char* const name_;  ///< for people who read a debugger
  const Reset reset_;
  const ProcessState* const next_;
};

}  // namespace lockstep
