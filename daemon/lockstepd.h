#pragma once

#include "checkpoint/save/saver.h"
#include "train/run.h"

namespace lockstep::daemon {

/// The whole program lockstepd: command line, MPI, one session, exit code. `on_step` is called
/// before every step (may be empty); it is how a program of one's own, linked with this library,
/// looks into or changes a run. `at_save_phase` is called by the saver's thread.
int lockstepd_main(int argc, char** argv, const train::StepHook& on_step = {},
                   const checkpoint::SavePhaseHook& at_save_phase = {});

}  // namespace lockstep::daemon
