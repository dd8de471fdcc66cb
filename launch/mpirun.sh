#!/usr/bin/env bash
# Starts N ranks of a program on this host: launch/mpirun.sh N PROGRAM [ARGUMENTS...]
# Adds only options for what Open MPI 4.1 refuses by default: running as root, more ranks than cores (then waiting ranks yield).
# LOCKSTEP_MPIRUN_ARGS adds arguments of mpirun itself.
set -euo pipefail

# Open MPI keeps the files of all jobs in one folder for each user and host. If a job removes it at its end, another job that starts at that
# moment fails ("A call to mkdir was unable to create the desired directory"). So each start has its own folder; empty ones of ended starts are removed.
session_folder() {
  local all each ended=()
  all=${TMPDIR:-/tmp}/lockstep-mpi.$EUID
  mkdir -m 700 "$all" 2>/dev/null || true
  # The name is predictable: if another user has made the folder, or may write into it, use an unpredictable one.
  [ -O "$all" ] && [ ! -L "$all" ] && [ -z "$(find "$all" -maxdepth 0 -perm /022)" ] || all=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-mpi.XXXXXX")
  for each in "$all"/*; do
    [ -d "/proc/${each##*/}" ] || ended+=("$each")
  done
  [ ${#ended[@]} = 0 ] || rmdir "${ended[@]}" 2>/dev/null || true  # killed starts leave files in theirs, which remain
  [ -z "${OMPI_MCA_orte_tmpdir_base:-}${PRTE_MCA_prte_tmpdir_base:-}" ] || return 0
  export OMPI_MCA_orte_tmpdir_base=$all/$$ PRTE_MCA_prte_tmpdir_base=$all/$$  # of Open MPI 4 and of 5
}

[ $# -ge 2 ] || { echo "usage: launch/mpirun.sh N PROGRAM [ARGUMENTS...]" >&2; exit 64; }
ranks=$1; shift
arguments=(--bind-to none --oversubscribe --mca mpi_yield_when_idle 1 --mca btl_vader_single_copy_mechanism none)
[ "$EUID" != 0 ] || arguments+=(--allow-run-as-root)
# shellcheck disable=SC2206 # several arguments in one variable, as the name says
arguments+=(${LOCKSTEP_MPIRUN_ARGS:-})
# Without other hosts no network card is used: mpirun does not read registers of PCI devices, which are slow in virtual machines.
[ -n "${LOCKSTEP_MPIRUN_ARGS:-}" ] || export HWLOC_COMPONENTS=${HWLOC_COMPONENTS--linuxio,-pci}
session_folder
trap '' PIPE  # Open MPI 4.1 handles it, except while it ends: then a rank that has closed its standard input would make a finished run fail
exec mpirun -n "$ranks" "${arguments[@]}" "$@"
