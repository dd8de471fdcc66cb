#pragma once

namespace lockstep::launch {

/// Handling of stop signals that arrive before the supervisor reads them: while its program is
/// loaded and the run file is read. The process then ends with 75, as later. Nothing has been
/// started yet that would have to end.
///
/// hold_stop_signals() blocks such signals, even across exec. end_at_stop_signals() ends the
/// process at a pending or later one, until stop_signals_are_heard(). SIGUSR2 (save and continue)
/// has nothing to save then and is ignored. From end_at_stop_signals() on SIGPIPE is ignored.
///
/// Meant for main() of a program that will call supervise(), before it starts threads.
void hold_stop_signals();
void end_at_stop_signals();

/// Ends the handling above. Called by the owner of a SignalQueue, which has blocked these signals
/// and reads them from now on.
void stop_signals_are_heard();

/// True if this command line of lockstep leads to supervise().
bool is_supervisor(int argc, char** argv);

}  // namespace lockstep::launch
