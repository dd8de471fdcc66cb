#!/usr/bin/env bash
# A launcher pod's first process: lockstep-launcher [--wait SECONDS] [--tries N] [--pause SECONDS] [--job ID --notes FOLDER] mpirun ARGUMENTS...
#
# Waits until each worker runs a command over ssh (--wait 300: at most so many seconds, then exits with 69 and the names of the missing workers).
# The hosts are those of -host, else of the host file in OMPI_MCA_orte_default_hostfile or PRTE_MCA_prte_default_hostfile. Then it starts mpirun,
# forwards signals to it, and exits with its code. If the pod was not told to stop, it acts on the code:
#   75                        the ranks have saved and stopped, for example because a worker's pod is removed: started again
#   1, 69, 79, 129, ..., 255  ranks are lost: started again, at most N times (--tries, 0); the transient codes of base/exit_class.h
#   any other                 another try cannot help (docs/exit_codes.md). The code is written to FOLDER/ID. Each further launcher of this job exits
#                             with it and starts nothing, since a Kubernetes Job cannot retry only for certain codes.
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
case ${1:-} in '' | -*) echo "launcher: '${1:-}' is not a command; see the first lines of $0" >&2; exit 64 ;; esac

told='' child=''
pass_on() { [ -z "$child" ] || kill -"$1" "$child" 2>/dev/null; }
trap 'told=yes; pass_on USR1' USR1
trap 'told=yes; pass_on TERM' TERM INT
trap 'pass_on USR2' USR2

# Logs to stderr and to the termination message that `kubectl describe pod` shows.
say() {
  echo "$(date -Is) launcher: $*" >&2
  [ ! -w /dev/termination-log ] || echo "$*" >/dev/termination-log
}

# Runs a command until it ends; sets $code.
run() {
  "$@" & child=$!
  [ -z "$told" ] || pass_on USR1  # a signal came before the start
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

# HOST: returns when the host answers; after the deadline prints a line about it. Ends at the latest after the launcher itself.
wait_for_host() {
  local arguments said
  read -ra arguments <<<"${OMPI_MCA_plm_rsh_args:-${PRTE_MCA_plm_ssh_args:-}}"  # as mpirun's; ssh uses the first of repeated options
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
    number=$((number + 1)); [ $((number % 16)) != 0 ] || wait  # 16 at a time
  done | head -n 10
}

# Waits for the hosts, then runs mpirun; sets $code.
start() {
  local silent=$scratch/silent
  run wait_for_hosts "$@" >"$silent"
  [ -z "$told" ] || { code=75; return; }
  [ ! -s "$silent" ] || { say "after $wait_s s ssh cannot reach: $(paste -sd ';' "$silent" | sed 's/;/; /g')"; code=69; return; }
  run "$@"
}

note() { [ -z "$job" ] || { mkdir -p "$notes" && echo "$1" >"$notes/$job"; }; }

if [ -n "$job" ] && code=$(cat "$notes/$job" 2>/dev/null); then
  say "this job has ended with $code, which another try cannot fix: not started again. Correct it, then delete the job and apply it again"
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
      say "the ranks ended with $code, which another try cannot fix (docs/exit_codes.md)"
      exit "$code" ;;
  esac
  run sleep "$pause_s"
  code=75  # told to stop meanwhile: there is nothing more to save
done
case $code in
  1 | 69 | 129 | 130 | 137 | 138 | 140 | 143 | 255) code=75 ;;  # other codes of mpirun and its ranks when they are told to stop
esac
exit "$code"
