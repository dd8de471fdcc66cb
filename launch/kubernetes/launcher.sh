#!/usr/bin/env bash
# A launcher pod's first process: lockstep-launcher [--wait SECONDS] [--tries N] [--pause SECONDS] [--job ID --notes FOLDER] mpirun ARGUMENTS...
#
# Waits until each worker runs a command for ssh (--wait 300: so long at most, then 69 with the names of those that do not). The hosts are those of
# -host, else of the host file that OMPI_MCA_orte_default_hostfile or PRTE_MCA_prte_default_hostfile names. Then it starts mpirun, passes signals
# on to it, and ends with its exit code. Where the pod was not told to end:
#   75                        the ranks have saved and stopped, as where a worker's pod goes: started again
#   1, 69, 79, 129, ..., 255  ranks are lost: started again, N times at most (--tries, 0); the transient ones of base/exit_class.h
#   any other                 no other try mends it (docs/exit_codes.md). It is noted in FOLDER/ID, and each further launcher of this job ends
#                             with the same code and starts nothing: a Job of Kubernetes cannot be told to try some codes again only.
# shellcheck disable=SC2317 # functions are called by their names, as commands of `run`
set -uo pipefail

wait_s=300 tries=0 pause_s=5 job='' notes='' code=75
while [ $# -gt 1 ]; do
  case $1 in
    --wait) wait_s=$2 ;;
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

hosts() {  # ARGUMENTS of mpirun
  local file=${OMPI_MCA_orte_default_hostfile:-${PRTE_MCA_prte_default_hostfile:-}} before=''
  for word; do
    case $before in -host | --host | -H) tr ',' '\n' <<<"$word" | sed 's/:.*//'; return ;; esac
    before=$word
  done
  [ ! -f "$file" ] || sed -n 's/^[[:space:]]*\([^#[:space:]][^[:space:]]*\).*/\1/p' "$file"
}

# HOST: returns when it answers; after the deadline prints a line about it. At the latest it ends behind the launcher itself.
wait_for_host() {
  local arguments said
  read -ra arguments <<<"${OMPI_MCA_plm_rsh_args:-${PRTE_MCA_plm_ssh_args:-}}"  # as mpirun's; of an option given twice ssh takes the first
  until said=$(timeout 15 ssh -o BatchMode=yes -o ConnectTimeout=5 -o ConnectionAttempts=1 ${arguments[@]+"${arguments[@]}"} "$1" true </dev/null 2>&1); do
    [ "$SECONDS" -lt "$deadline" ] || { said=${said//$'\r'/}; said=${said##*$'\n'}; echo "$1: ${said:-no answer}"; return; }
    [ -e "/proc/$$" ] || return
    sleep 1
  done
}

wait_for_hosts() {  # ARGUMENTS of mpirun; prints a line for each host that does not answer, at most 10
  local host number=0 deadline=$((SECONDS + wait_s))
  for host in $(hosts "$@" | sort -u); do
    wait_for_host "$host" &
    number=$((number + 1)); [ $((number % 16)) != 0 ] || wait  # so many at a time
  done | head -n 10
}

# Waits for the hosts, and runs mpirun: $code.
start() {
  local silent=$scratch/silent
  run wait_for_hosts "$@" >"$silent"
  [ -z "$told" ] || { code=75; return; }
  [ ! -s "$silent" ] || { say "after $wait_s s ssh cannot reach: $(paste -sd ';' "$silent" | sed 's/;/; /g')"; code=69; return; }
  run "$@"
}

note() { [ -z "$job" ] || { mkdir -p "$notes" && echo "$1" >"$notes/$job"; }; }

if [ -n "$job" ] && code=$(cat "$notes/$job" 2>/dev/null); then
  say "this job has ended with $code, which no other try mends: not started again. Correct it, then delete the job and apply it anew"
  exit "$code"
fi

scratch=$(mktemp -d); trap 'rm -rf "$scratch"' EXIT
while [ -z "$told" ]; do
  start "$@"
  [ "$code" != 0 ] || exit 0
  [ -z "$told" ] || break
  case $code in
    75) say "the ranks have saved and stopped (75): started again" ;;
    1 | 69 | 79 | 129 | 130 | 134 | 135 | 137 | 138 | 139 | 140 | 143 | 253 | 255)
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
case $code in
  1 | 69 | 129 | 130 | 137 | 138 | 140 | 143 | 255) code=75 ;;  # what mpirun and its ranks also end with when they are told to
esac
exit "$code"
