#pragma once

#include "checkpoint/save/saver.h"
#include "train/run.h"

namespace lockstep::daemon {

/// Runs the entire program lockstepd: command line, MPI, one session. Returns the exit code.
/// `on_step` is called before every step and may be empty. A program that links this library can
/// observe or change a run in it. The saver's thread calls `at_save_phase`.
int lockstepd_main(int argc, char** argv, const train::StepHook& on_step = {},
                   const checkpoint::SavePhaseHook& at_save_phase = {});

}  // namespace lockstep::daemon
