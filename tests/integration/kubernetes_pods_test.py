"""Parts that the Kubernetes manifests rely on, without a cluster: launcher.sh, and pods' sshd, mpirun and preStop between network namespaces."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import unittest
import unittest.mock

from harness import DIGITS, LOCKSTEPD, SOURCE, LockstepTest, stays, wait_for
from kubernetes_test import KUBERNETES, hopeless_codes
sys.path.insert(0, str(SOURCE / "tests/support"))
from counts import count, counted
from skips import missing_tool, require_tool, skip

HOSTS = {"a": "10.231.7.1", "b": "10.231.7.2"}  # of tools/netns


class Launcher(LockstepTest):
    """launcher.sh with programs that end as ranks do."""

    def program(self, text):
        path = self.folder / "program.sh"
        path.write_text(f"echo started >>{self.folder}/starts\n{text}\n")
        return ["bash", path]

    def starts(self):
        path = self.folder / "starts"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def start(self, program, *arguments):
        words = [KUBERNETES / "launcher.sh", "--pause", "0", *arguments, *program]
        process = subprocess.Popen([*map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder)
        self.started.append(process)
        return process

    def ended(self, process, code):
        said, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, code, said)
        return said

    def test_what_no_other_try_mends_ends_this_job_and_no_other(self):
        for code in counted("codes that another try cannot fix end the job", (*hopeless_codes(), "74", "132", "136")):
            starts = self.starts()
            noted = ("--tries", "3", "--job", f"uid-{code}", "--notes", self.folder / "a/notes")
            self.assertIn(f"ended with {code}, which another try cannot fix", self.ended(self.start(self.program(f"exit {code}"), *noted), int(code)))
            self.assertEqual(self.starts(), starts + 1, code)
            self.assertIn("delete the job and apply it again", self.ended(self.start(self.program("exit 0"), *noted), int(code)))
            self.assertEqual(self.starts(), starts + 1, f"{code}: a further launcher of the job started ranks")
        self.ended(self.start(self.program("exit 0"), "--job", "another", "--notes", self.folder / "a/notes"), 0)
        self.ended(self.start(self.program("exit 78"), "--job", "", "--notes", self.folder / "b"), 78)  # a cluster that does not say which job it is
        self.assertFalse((self.folder / "b").exists())

    def test_lost_ranks_are_started_again_so_often(self):
        for code in counted("codes of lost ranks are tried again, so often", (1, 69, 79, 129, 130, 134, 135, 137, 138, 139, 140, 143, 253, 255)):
            starts = self.starts()
            self.ended(self.start(self.program(f"exit {code}"), "--tries", "2"), code)
            self.assertEqual(self.starts(), starts + 3, code)
        starts = self.starts()
        self.ended(self.start(self.program("exit 137")), 137)
        self.assertEqual(self.starts(), starts + 1)

    def test_ranks_that_a_signal_ends_while_they_are_loaded_are_no_failure(self):
        """The signal comes from a worker's preStop, or from a launcher that is told to stop when there is nothing to save yet."""
        noted = ("--tries", "1", "--job", "uid", "--notes", self.folder / "notes")
        self.ended(self.start(self.program(f'[ "$(wc -l <{self.folder}/starts)" -gt 1 ] || kill -USR1 $$'), *noted), 0)
        self.assertEqual(self.starts(), 2)
        self.assertFalse((self.folder / "notes").exists())
        for number in (signal.SIGUSR1, signal.SIGTERM):
            (self.folder / "ready").unlink(missing_ok=True)
            process = self.start(self.program("touch ready; while :; do sleep 0.1; done"), *noted)
            wait_for((self.folder / "ready").exists, "the program to start")
            process.send_signal(number)
            self.ended(process, 75)

    def test_a_stop_that_it_was_not_told_of_is_no_failure(self):
        self.assertIn("started again", self.ended(self.start(self.program(f'[ "$(wc -l <{self.folder}/starts)" -gt 5 ] || exit 75')), 0))
        self.assertEqual(self.starts(), 6)

    def test_signals_go_on_and_a_told_launcher_starts_nothing_again(self):
        waits = 'trap "exit 75" USR1; trap "exit 1" TERM; trap "echo saved >>saves" USR2; touch ready; while :; do sleep 0.1; done'
        for number, code in counted("signals went on to the ranks", ((signal.SIGUSR1, 75), (signal.SIGTERM, 75))):
            (self.folder / "ready").unlink(missing_ok=True)
            starts = self.starts()
            process = self.start(self.program(waits), "--tries", "3")
            wait_for((self.folder / "ready").exists, "the program to start")
            process.send_signal(signal.SIGUSR2)
            wait_for((self.folder / "saves").exists, "SIGUSR2 to be passed on")
            process.send_signal(number)
            self.ended(process, code)
            self.assertEqual(self.starts(), starts + 1)
        starts = self.starts()
        process = self.start(self.program("exit 137"), "--tries", "9", "--pause", "60")
        wait_for(lambda: self.starts() > starts, "the program to start")
        stays(lambda: self.starts() == starts + 1, "the pause before the next start", 0.5)
        process.send_signal(signal.SIGUSR1)
        self.ended(process, 75)
        self.assertEqual(self.starts(), starts + 1)

    def test_told_while_it_waits_for_hosts_it_ends(self):
        hosts = self.folder / "hostfile"
        hosts.write_text("# the operator's\n\n127.0.0.1 slots=1\n  127.0.0.1 slots=1\n")
        with unittest.mock.patch.dict(os.environ, PRTE_MCA_prte_default_hostfile=str(hosts), PRTE_MCA_plm_ssh_args="-p 9"):
            process = self.start(self.program("exit 0"), "--wait", "60")
        stays(lambda: process.poll() is None, "the launcher waits for its hosts", 1)
        process.send_signal(signal.SIGUSR1)
        self.assertEqual(wait_for(lambda: process.poll(), "the launcher's end, in place of a minute", 10), 75)  # before what it says is read: those that ask hosts write there too, until it is gone
        self.ended(process, 75)
        self.assertEqual(self.starts(), 0)

    def test_hosts_that_do_not_answer_are_named(self):
        names = [f"no-such-{i}.invalid" for i in range(20)]
        said = self.ended(self.start([*self.program("exit 0"), "-host", ",".join(f"{name}:2" for name in names)], "--wait", "1"), 69)
        self.assertEqual(self.starts(), 0)
        [line] = [line for line in said.splitlines() if "after 1 s ssh cannot reach" in line]
        named = re.findall(r"no-such-\d+\.invalid(?=: ssh: Could not resolve hostname)", line)
        self.assertEqual(len(set(named)), 10, said)  # of twenty

    def test_usage(self):
        for words in ((), ("--tries", "3"), ("--none", "3", "true")):
            self.assertIn("is not a command", self.ended(self.start((), *words), 64))


class Pods(LockstepTest):
    """A host of tools/netns for each worker pod, with its sshd; a launcher on one of them."""

    def setUp(self):
        super().setUp()
        require_tool("ip")
        if subprocess.run([SOURCE / "tools/netns", "exec", "true"], capture_output=True, check=False).returncode == 77:
            skip("network namespaces are not permitted here")
        self.sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")  # it wants its whole path
        if self.sshd is None:
            (skip if pathlib.Path("/run/systemd/system").exists() else missing_tool)("no sshd; Debian's package openssh-server has it")
        self.keys = self.folder / "keys"
        self.keys.mkdir(mode=0o700)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.keys / "id_rsa"], check=True)
        shutil.copy(self.keys / "id_rsa.pub", self.keys / "authorized_keys")
        try:
            pathlib.Path("/run/sshd").mkdir(exist_ok=True)
        except PermissionError:
            skip("sshd wants the folder /run/sshd, which only root can make")

    def settings(self, name):
        """The image's file, with the keys of this test in the place of the pod's."""
        path = self.folder / name
        path.write_text((KUBERNETES / name).read_text().replace("/home/lockstep/.ssh", str(self.keys)).replace("/tmp/sshd.pid", str(self.folder / "none")))
        return path

    def launcher(self):
        """The manifest's mpirun, where the operator's host file and variables are."""
        hosts = self.folder / "hostfile"
        hosts.write_text("".join(f"{address} slots=1\n" for address in HOSTS.values()))
        manifest = (KUBERNETES / "mpijob/job.yaml").read_text()
        words = re.sub(r"\s+", " ", re.search(r"command: \[(lockstep-launcher[^]]*)\]", manifest)[1]).split(", ")
        command = [word.strip('"') for word in words]
        command[0] = str(KUBERNETES / "launcher.sh")
        command[command.index("--notes") + 1] = str(self.folder / "notes")
        command[command.index("odls_base_sigkill_timeout") + 1] = "1"  # mpirun waits so long, twice, after its ranks' end
        at = command.index("lockstepd")
        ours = ["--allow-run-as-root", "--mca", "btl_vader_single_copy_mechanism", "none"]
        sets = [f"run.project_dir={self.folder}/run", "run.threads=1", "metrics.listen='127.0.0.1:0'", "train.max_steps=1000000", "checkpoint.save_checkpoints_steps=20"]
        return {"OMPI_MCA_orte_default_hostfile": str(hosts), "OMPI_MCA_orte_keep_fqdn_hostnames": "true", "OMPI_MCA_orte_set_default_slots": "1",
                "OMPI_MCA_plm_rsh_args": f"-F {self.settings('ssh_config')} -i {self.keys}/id_rsa -o ConnectionAttempts=10",
                "OMPI_MCA_oob_tcp_if_include": "10.231.7.0/24", "OMPI_MCA_btl_tcp_if_include": "10.231.7.0/24"}, [
                    *command[:at], *ours, LOCKSTEPD, "--config", DIGITS, *(word for one in sets for word in ("--set", one))]

    def start_pods(self, late_s="0", changes=lambda command: command):
        """Pod b takes connections after `late_s`; the launcher's command may be changed."""
        environment, command = self.launcher()
        command = changes(command)
        sshd = f"{self.sshd} -De -f {self.settings('sshd_config')}"
        script = self.folder / "pods.sh"
        script.write_text(f'for pod in a b; do {SOURCE}/tools/netns on $pod sh -c \'[ "$1" = a ] || sleep {late_s}; exec {sshd}\' pod $pod </dev/null >{self.folder}/sshd_$pod.log 2>&1 & done\n'
                          f'{SOURCE}/tools/netns on a "$@" & launcher=$!\necho $launcher >{self.folder}/launcher.pid\n'
                          'while kill -0 $launcher 2>/dev/null; do wait $launcher; code=$?; done\nexit $code\n')
        process = subprocess.Popen(["bash", SOURCE / "tools/netns", "exec", "bash", script, *map(str, command)], env={**os.environ, **environment},
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder)
        self.started.append(process)
        return process

    def ranks(self):
        """Process ids of the run's ranks, by the parent's name: a rank of a pod is a child of its sshd's session."""
        found = subprocess.run(["pgrep", "-f", f"lockstepd --config .*{self.folder}/run"], capture_output=True, text=True).stdout.split()
        return [int(pid) for pid in found if self.name_of(pid) == "lockstepd"]

    @staticmethod
    def name_of(pid):
        try:
            return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:  # it has ended
            return ""

    def stopped_by(self, *stops):
        """Each but the last one stops ranks that then begin again."""
        process = self.start_pods()
        try:
            wait_for(lambda: process.poll() is not None or list((self.folder / "run/checkpoints").glob("*.index")), "a save of two ranks", 120)
            self.assertIsNone(process.poll(), process.stdout.read() if process.poll() is not None else "")
            for stop in counted("stops of pods saved on all of them", stops):
                before = wait_for(lambda: len(self.ranks()) == 2 and self.ranks(), "two ranks")
                stop()
                if stop is not stops[-1]:
                    wait_for(lambda: len(self.ranks()) == 2 and not set(self.ranks()) & set(before), "two other ranks", 120)
                    wait_for(lambda: "resumed" in self.log_of_rank_0(), "the save to be restored")
            said, _ = process.communicate(timeout=120)
        finally:
            process.kill()
        self.assertEqual(process.returncode, 75, said)
        self.assertIn("on request, saved", said)
        self.assertEqual(self.ranks(), [])
        accepted = (self.folder / "sshd_b.log").read_text()
        self.assertIn("Accepted publickey", accepted)  # the second rank came this way
        return said

    def test_a_pod_that_is_late_is_waited_for(self):
        process = self.start_pods(late_s="4", changes=lambda command: [*command, "--set", "train.max_steps=3"])
        said, _ = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, said)

    def test_a_pod_that_does_not_come_is_named(self):
        process = self.start_pods(late_s="1000", changes=lambda command: [command[0], "--wait", "3", "--tries", "0", *command[command.index("--job"):]])
        said, _ = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 69, said)
        self.assertIn(f"after 3 s ssh cannot reach: {HOSTS['b']}: ssh: connect to host {HOSTS['b']} port 2222: Connection refused", said)
        self.assertNotIn(f"reach: {HOSTS['a']}", said)

    def test_variables_reach_ranks_by_x_alone(self):
        def changes(command):
            at = command.index("mpirun") + 1
            return [*command[:at], "-x", "LOCKSTEP_RUN_SEED", *command[at:]]
        with unittest.mock.patch.dict(os.environ, LOCKSTEP_RUN_SEED="77", OF_THE_LAUNCHER="yes"):
            process = self.start_pods(changes=changes)
        try:
            wait_for(lambda: process.poll() is not None or (len(self.ranks()) == 2 and list((self.folder / "run/checkpoints").glob("*.index"))), "a save of two ranks", 120)
            environments = [pathlib.Path(f"/proc/{pid}/environ").read_text().split("\0") for pid in self.ranks()]
        finally:
            if process.poll() is None:
                self.end_launcher()
            process.communicate(timeout=60)
        self.assertEqual(["LOCKSTEP_RUN_SEED=77" in one for one in environments], [True, True])
        count("ranks of pods have the variable of mpirun -x", len(environments))
        self.assertIn(False, ["OF_THE_LAUNCHER=yes" in one for one in environments], "a rank of another pod gets no other variable")

    def end_launcher(self):
        os.kill(int((self.folder / "launcher.pid").read_text()), signal.SIGUSR1)

    def log_of_rank_0(self):
        return (self.folder / "run/logs/rank0.log").read_text()

    def test_the_launchers_pre_stop_saves_on_all_pods(self):
        self.stopped_by(self.end_launcher)

    def test_a_workers_pre_stop_saves_on_all_pods_and_the_launcher_goes_on(self):
        said = self.stopped_by(lambda: os.kill(self.ranks()[-1], signal.SIGUSR1), self.end_launcher)
        self.assertIn("have saved and stopped (75): started again", said)


if __name__ == "__main__":
    unittest.main()
