#!/usr/bin/env bash
# A launcher pod's first process: lockstep-launcher [--tries N] [--pause SECONDS] [--job ID --notes FOLDER] mpirun ARGUMENTS...
#
# Starts mpirun, passes signals on to it, and ends with its exit code. Where the pod was not told to end:
#   75                        the ranks have saved and stopped, as where a worker's pod goes: started again
#   1, 69, 79, 134, ..., 255  ranks are lost: started again, N times at most (--tries, 0)
#   any other                 no other try mends it (docs/exit_codes.md). It is noted in FOLDER/ID, and each further launcher of this job ends
#                             with the same code and starts nothing: a Job of Kubernetes cannot be told to try some codes again only.
set -uo pipefail

tries=0 pause_s=5 job='' notes='' code=75
while [ $# -gt 1 ]; do
  case $1 in
    --tries) tries=$2 ;;
    --pause) pause_s=$2 ;;
    --job) job=$2 ;;
    --notes) notes=$2 ;;
    *) break ;;
  esac
  shift 2
done
case ${1:-} in '' | -*) echo "launcher: '${1:-}' is no command: see the first lines of $0" >&2; exit 64 ;; esac

told='' child=''
pass_on() { [ -z "$child" ] || kill -"$1" "$child" 2>/dev/null; }
trap 'told=yes; pass_on USR1' USR1
trap 'told=yes; pass_on TERM' TERM INT
trap 'pass_on USR2' USR2

# In the log, and in what `kubectl describe pod` shows of the end.
say() {
  echo "$(date -Is) launcher: $*" >&2
  [ ! -w /dev/termination-log ] || echo "$*" >/dev/termination-log
}

# Runs a command to its end: $code.
run() {
  "$@" & child=$!
  [ -z "$told" ] || pass_on USR1  # told in between
  while kill -0 "$child" 2>/dev/null; do wait "$child"; done  # a signal ends `wait`, not the command
  wait "$child"; code=$?
  child=''
}

note() { [ -z "$job" ] || { mkdir -p "$notes" && echo "$1" >"$notes/$job"; }; }

if [ -n "$job" ] && code=$(cat "$notes/$job" 2>/dev/null); then
  say "this job has ended with $code, which no other try mends: not started again. Correct it, then delete the job and apply it anew"
  exit "$code"
fi

while [ -z "$told" ]; do
  run "$@"
  [ "$code" != 0 ] || exit 0
  [ -z "$told" ] || break
  case $code in
    75) say "the ranks have saved and stopped (75): started again" ;;
    1 | 69 | 79 | 134 | 135 | 137 | 139 | 255)
      [ "$tries" -gt 0 ] || { say "the ranks are lost ($code)"; exit "$code"; }
      tries=$((tries - 1))
      say "the ranks are lost ($code): started again, $tries more times at most" ;;
    *)
      note "$code"
      say "the ranks ended with $code, which no other try mends (docs/exit_codes.md)"
      exit "$code" ;;
  esac
  run sleep "$pause_s"
  code=75  # told to end in that time: there is nothing more to save
done
[ "$code" != 1 ] || code=75  # mpirun's, where SIGTERM ended it, although its ranks have stopped as asked
exit "$code"
