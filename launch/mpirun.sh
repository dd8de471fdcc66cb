#!/usr/bin/env bash
# Starts N ranks of a program on this host: launch/mpirun.sh N PROGRAM [ARGUMENTS...]
# Adds only what Open MPI 4.1 refuses to do unasked: running as root, more ranks than cores (then ranks yield while
# they wait). LOCKSTEP_MPIRUN_ARGS adds arguments for mpirun itself.
set -euo pipefail

# Open MPI keeps each job's files in one folder a user and host. Where a job removes it as it ends, another that starts at that moment
# fails ("A call to mkdir was unable to create the desired directory"). So each start has one of its own; empty ones of ended starts go.
session_folder() {
  local all each ended=()
  all=${TMPDIR:-/tmp}/lockstep-mpi.$EUID
  mkdir -m 700 "$all" 2>/dev/null || true
  # The name can be guessed: where another user has made it, or may write into it, one that cannot be.
  [ -O "$all" ] && [ ! -L "$all" ] && [ -z "$(find "$all" -maxdepth 0 -perm /022)" ] || all=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-mpi.XXXXXX")
  for each in "$all"/*; do
    [ -d "/proc/${each##*/}" ] || ended+=("$each")
  done
  [ ${#ended[@]} = 0 ] || rmdir "${ended[@]}" 2>/dev/null || true  # killed starts leave more in theirs: they stay
  [ -z "${OMPI_MCA_orte_tmpdir_base:-}${PRTE_MCA_prte_tmpdir_base:-}" ] || return 0
  export OMPI_MCA_orte_tmpdir_base=$all/$$ PRTE_MCA_prte_tmpdir_base=$all/$$  # of Open MPI 4, and of 5
}

[ $# -ge 2 ] || { echo "usage: launch/mpirun.sh N PROGRAM [ARGUMENTS...]" >&2; exit 64; }
ranks=$1; shift
arguments=(--bind-to none --oversubscribe --mca mpi_yield_when_idle 1 --mca btl_vader_single_copy_mechanism none)
[ "$EUID" != 0 ] || arguments+=(--allow-run-as-root)
# shellcheck disable=SC2206 # several arguments in one variable, as the name says
arguments+=(${LOCKSTEP_MPIRUN_ARGS:-})
# On this host alone no network card is used: mpirun reads no registers of PCI devices, which are slow in virtual machines.
[ -n "${LOCKSTEP_MPIRUN_ARGS:-}" ] || export HWLOC_COMPONENTS=${HWLOC_COMPONENTS--linuxio,-pci}
session_folder
exec mpirun -n "$ranks" "${arguments[@]}" "$@"
