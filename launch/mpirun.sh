#!/usr/bin/env bash
# Starts N ranks of a program on this host: launch/mpirun.sh N PROGRAM [ARGUMENTS...]
# Adds only what Open MPI 4.1 refuses to do unasked: running as root, more ranks than cores (then ranks yield while
# they wait). LOCKSTEP_MPIRUN_ARGS adds arguments for mpirun itself.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: launch/mpirun.sh N PROGRAM [ARGUMENTS...]" >&2; exit 64; }
ranks=$1; shift
arguments=(--bind-to none --oversubscribe --mca mpi_yield_when_idle 1 --mca btl_vader_single_copy_mechanism none)
[ "$(id -u)" != 0 ] || arguments+=(--allow-run-as-root)
# shellcheck disable=SC2206 # several arguments in one variable, as the name says
arguments+=(${LOCKSTEP_MPIRUN_ARGS:-})
exec mpirun -n "$ranks" "${arguments[@]}" "$@"
