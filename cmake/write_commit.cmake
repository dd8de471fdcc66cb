# Writes build_commit.h with the git commit. Changes the file only if the commit changed, to keep builds incremental.
execute_process(COMMAND git -C "${SOURCE_DIR}" describe --always --dirty=+changes --exclude=*
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT "#pragma once\n#define LOCKSTEP_COMMIT \"${commit}\"\n" @ONLY)
