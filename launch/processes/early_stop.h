#pragma once

namespace lockstep::launch {

/// What tells a supervisor to stop may come before it listens: while its program is loaded and the
/// run file is read. Then it ends with 75, as later; nothing that it would have to end is started.
///
/// hold_stop_signals() keeps such signals waiting, also over exec. end_at_stop_signals() ends the
/// process at those that wait and at each that follows, until stop_signals_are_heard(). SIGUSR2
/// (save and go on) has nothing to save then and does nothing. From end_at_stop_signals() on
/// SIGPIPE is ignored. For main() of a program that goes on to supervise(), before it starts
/// threads.
void hold_stop_signals();
void end_at_stop_signals();

/// Called by who has blocked them and reads them from now on (SignalQueue).
void stop_signals_are_heard();

/// Whether this command line, lockstep's, ends in supervise().
bool is_supervisor(int argc, char** argv);

}  // namespace lockstep::launch
