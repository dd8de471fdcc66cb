"""`lockstep run` brings lost ranks back, gives up where it must, and leaves nothing behind."""
import fcntl
import os
import pathlib
import re
import select
import shutil
import signal
import socket
import subprocess
import unittest

from counts import counted
from harness import DIGITS, ENDLESS, FAULTY_RANK, LOCKSTEP, LOCKSTEPD, PRUNE_EARLY, SOURCE, Run, wait_for, within
import soak
from supervised import SupervisedTest, processes_of
from supervised_kills import ranks_in

NETNS = SOURCE / "tools/netns"
STEPS = 240
SAVES = [PRUNE_EARLY, "checkpoint.save_checkpoints_steps=20", f"train.max_steps={STEPS}", "eval.every_epochs=0"]


def fault(action, rank, step):
    return {"LOCKSTEP_TEST_ACTION": action, "LOCKSTEP_TEST_RANK": str(rank), "LOCKSTEP_TEST_STEP": str(step)}


def words_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:  # it has ended meanwhile
        return []


def environment_of(pid):
    try:
        return dict(line.split("=", 1) for line in pathlib.Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0") if "=" in line)
    except OSError:  # it has ended meanwhile
        return {}


def is_heard(pid, number):
    """True if the process catches this signal, or blocks it."""
    masks = re.findall(r"(?m)^Sig(?:Cgt|Blk):\s*(\w+)$", pathlib.Path(f"/proc/{pid}/status").read_text())
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


def is_pending(pid, number):
    """True if the signal was sent and not handled yet."""
    masks = re.findall(r"(?m)^(?:Sig|Shd)Pnd:\s*(\w+)$", pathlib.Path(f"/proc/{pid}/status").read_text())
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


class Launch(SupervisedTest):
    def assert_as_unbroken(self, run):
        unbroken = self.shared("unbroken", sets=SAVES)
        self.assertEqual(run.summary()["parameters_sha256"], unbroken.summary()["parameters_sha256"])
        self.assertEqual(run.steps(), unbroken.steps())

    def test_killed_ranks_come_back_and_end_bit_for_bit(self):
        run = self.supervise(sets=SAVES)
        for at_step, victims in ((20, [0]), (80, [1]), (140, [0, 1])):
            run.wait_for_commit(at_step)
            pids = run.rank_pids()
            for rank in victims:
                os.kill(pids[rank], signal.SIGKILL)
        run.wait()
        self.assertEqual(run.code, 0, run.log)
        self.assertEqual(self.restarts_of(run), 3, run.log)
        self.assert_as_unbroken(run)
        self.assertIn("lockstep_restarts 3", run.last_page(0))
        self.assert_nothing_runs(run)
        print(f"\n3 kills, {self.restarts_of(run)} restarts, weights and {STEPS} lines of steps.csv as in the unbroken run")

    def test_ranks_that_lost_one_have_the_time_to_say_so(self):
        """A bug of rank 1 alone: rank 0 still names the cause, ends its summary, and leaves its last page."""
        run = self.supervise(sets=[*SAVES, f"metrics.textfile_dir={self.folder}"], arguments=["--max-restarts", "0", "--program", FAULTY_RANK],
                             environment=fault("throw", 1, 30)).wait()
        self.assertNotEqual(run.code, 0)
        for rank, text in ((0, "a peer is lost"), (1, "made to fail")):
            self.assertIn(text, (run.folder / f"logs/lockstep-error-{rank}.json").read_text(), run.log)
        self.assertIn("made to fail", run.summary()["error"])
        self.assertTrue((self.folder / "lockstep_digits.prom").exists())

    def spare(self, run):
        """Process number of the one process that has no rank."""
        def waiting():
            words = {pid: words_of(pid) for pid in processes_of(run.folder)}
            ranks = run.rank_pids().values()
            found = [pid for pid, said in words.items() if said and os.path.basename(said[0]) == "lockstepd" and pid not in ranks]
            return found[0] if len(found) == 1 else None
        return wait_for(waiting, "a spare process")

    def test_a_spare_takes_the_place_of_a_lost_rank_and_the_next_loss_restarts(self):
        run = self.supervise(sets=SAVES, arguments=["--spare", "1"])
        run.wait_for_commit(40)
        spare, pids = self.spare(run), run.rank_pids()
        status = run.ctl("status")
        self.assertEqual([one["process"] for one in status["ranks"]], [pids[0], pids[1]])
        self.assertEqual((status["spares_left"], status["lost_ranks"]), (1, 0))
        for rank in ("2", "one"):
            self.assertIn("kill-rank takes a rank: 0 to 1", run.ctl("kill-rank", rank)[1])
        run.ctl("kill-rank", 1)  # a rehearsal
        wait_for(lambda: run.rank_pids()[1] == spare, "the spare in place 1")
        status = run.wait_for_status("the loss in the status", lost_ranks=1)
        self.assertEqual([one["process"] for one in status["ranks"]], [pids[0], spare])
        self.assertEqual((status["spares_left"], status["lost_ranks"]), (0, 1))
        self.assertIn("no spare process is left", run.ctl("kill-rank", 1)[1])
        os.kill(pids[0], signal.SIGKILL)
        run.wait()
        self.assertEqual(run.code, 0, run.log)
        self.assertIn(f"rank 1 is lost: process {spare} on {socket.gethostname()} takes its place", run.log)
        self.assertEqual(self.restarts_of(run), 1, run.log)
        self.assertNotIn("exiting improperly", run.log)
        self.assert_as_unbroken(run)
        self.assert_nothing_runs(run)

    def test_a_rank_that_hangs_in_a_save_is_replaced(self):
        """The other rank's save waits for it much longer than its training does."""
        sets = [*SAVES, "sync.share_weights=off"]
        unbroken = self.train(2, run="unbroken", sets=sets)
        for phase in soak.rounds([1, 5], [0, 2]):  # kStaged to kShardRenamed
            with self.subTest(phase=phase):
                shutil.rmtree(self.folder / "run", ignore_errors=True)
                run = self.supervise(sets=[*sets, "sync.timeout_s=2"], arguments=["--spare", "1", "--program", FAULTY_RANK],
                                     environment={**fault("stop", 1, 2), "LOCKSTEP_TEST_PHASE": str(phase)})
                self.assertEqual(run.wait().code, 0, run.log)
                self.assertRegex(run.log, r"rank 1 is lost: process \d+ on .* takes its place")
                self.assertEqual(self.restarts_of(run), 0, run.log)
                self.assertEqual(run.summary()["parameters_sha256"], unbroken.summary()["parameters_sha256"])
                self.assertEqual(run.steps(), unbroken.steps())

    def test_a_stop_ends_spares_too(self):
        run = self.supervise(config=ENDLESS, sets=["checkpoint.save_checkpoints_steps=20"], arguments=["--spare", "1"])
        run.hold()
        self.spare(run)
        run.process.send_signal(signal.SIGINT)
        self.assertEqual(run.wait().code, 75, run.log)
        self.assert_nothing_runs(run)
        self.stop_after_a_loss()
        again = self.supervise(config=ENDLESS, sets=["checkpoint.save_checkpoints_steps=20"], arguments=["--spare", "1"])
        again.hold()
        self.spare(again)
        again.process.kill()
        again.wait()
        self.assert_nothing_runs(again)

    def stop_after_a_loss(self):
        """mpirun would wait forever for processes that end with another code than 0."""
        run = self.supervise(config=ENDLESS, sets=["checkpoint.save_checkpoints_steps=20"], arguments=["--spare", "1"])
        run.hold()
        spare = self.spare(run)
        os.kill(run.rank_pids()[0], signal.SIGKILL)
        wait_for(lambda: run.rank_pids()[0] == spare, "the spare in place 0")
        run.process.send_signal(signal.SIGINT)
        self.assertEqual(run.wait().code, 75, run.log)
        self.assert_nothing_runs(run)

    def test_a_lost_rank_keeps_nobody_waiting(self):
        """mpirun leaves ranks 5 s here before SIGTERM, and 5 more before SIGKILL: where none is left it is not waited for."""
        run = self.supervise(sets=SAVES, environment={"OMPI_MCA_odls_base_sigkill_timeout": "5"})
        run.wait_for_commit(40)
        lost = run.rank_pids()
        os.kill(lost[1], signal.SIGKILL)
        with within(9, "SIGKILL of a rank to the next ranks") as took:
            wait_for(lambda: not os.path.exists(f"/proc/{lost[0]}"), "the other rank to end")
            wait_for(lambda: not set(run.rank_pids().values()) & set(lost.values()), "other ranks")
        print(f"\n{took.passed_s():.1f} s from SIGKILL of a rank to the next ranks")
        self.assertEqual(run.wait().code, 0, run.log)
        self.assertIn("ended before joining it: a peer is lost", run.log)

    def wait_for_main(self, pid):
        """Until it takes signals: before its libraries are loaded, which takes longest."""
        def takes_signals():
            maps = pathlib.Path(f"/proc/{pid}/maps").read_text()  # before the other look
            if is_heard(pid, signal.SIGTERM):
                return True
            self.assertNotIn("libtorch", maps, "LibTorch is loaded before signals are taken")
            return False
        wait_for(takes_signals, "main()")

    def test_a_stop_before_the_ranks_are_there(self):
        """While the program is loaded, the run file read, mpirun and the ranks started: from the first line of main() on."""
        def takes_signals(run):
            return any(is_heard(pid, signal.SIGTERM) for pid in ranks_in(run, ()))
        moments = {"main": (lambda run: True, signal.SIGTERM), "mpirun": (lambda run: len(processes_of(run.folder)) > 1, signal.SIGUSR1),
                   "a rank": (lambda run: ranks_in(run, ()), signal.SIGINT), "all ranks": (lambda run: len(ranks_in(run, ())) >= 2, signal.SIGUSR1),
                   "a rank's main": (takes_signals, signal.SIGHUP), "the folder": (lambda run: (run.folder / "logs").exists(), signal.SIGTERM)}
        for moment, (is_there, number) in counted("early stops ended with 75 and left nothing", moments.items()):
            run = self.supervise(run=moment.replace(" ", "_"), config=ENDLESS)
            self.wait_for_main(run.process.pid)
            wait_for(lambda: is_there(run), moment)
            run.process.send_signal(number)
            self.assertEqual(run.wait().code, 75, f"{number} at {moment}: {run.log}")
            self.assert_nothing_runs(run)

    def test_mpirun_killed_is_a_restart_too(self):
        run = self.supervise(sets=SAVES)
        run.wait_for_commit(40)
        children = subprocess.run(["pgrep", "-P", str(run.process.pid)], capture_output=True, text=True, check=True).stdout.split()
        self.assertEqual(len(children), 1)
        os.kill(int(children[0]), signal.SIGKILL)
        run.wait()
        self.assertEqual(run.code, 0, run.log)
        self.assertIn("the ranks ended with 137: restart 1 at once", run.log)
        self.assert_as_unbroken(run)

    def test_a_hanging_rank_is_a_restart(self):
        run = self.supervise(sets=[*SAVES, "sync.timeout_s=2"])
        run.wait_for_commit(40)
        os.kill(run.rank_pids()[1], signal.SIGSTOP)
        run.wait()
        self.assertEqual(run.code, 0, run.log)
        self.assertRegex(run.log, r"the ranks ended with (79|69): restart 1 at once")
        self.assert_nothing_runs(run)

    def test_an_accident_that_comes_back_at_the_same_step_is_given_up(self):
        run = self.supervise(sets=SAVES, arguments=["--program", FAULTY_RANK, "--max-restarts", "2"],
                             environment=fault("kill", 1, 5)).wait()
        self.assertIn(run.code, (137, 69), run.log)
        self.assertEqual(self.restarts_of(run), 2, run.log)
        self.assertIn("restart 2 in 1 s, from the beginning, as there is no checkpoint", run.log)
        self.assertIn("after 2 restart(s) in a row without a new checkpoint (--max-restarts)", run.log)
        self.assert_nothing_runs(run)

    def test_faults_of_the_run_file_start_nothing(self):
        run = self.supervise(sets=["optimizer.learning_rat=1"]).wait()
        self.assertEqual(run.code, 78, run.log)
        self.assertIn("did you mean 'optimizer.learning_rate'", run.log)
        self.assertFalse(run.folder.exists())

    def test_faults_that_ranks_find_are_not_tried_again(self):
        """Missing data, a wrong world size: one start, one message, no files left in the folder."""
        for code, sets in ((66, ["data.train={type: npy, path: no-such.npy}", "data.eval=null"]), (78, ["run.expect_world_size=3"])):
            run = self.supervise(run=f"run{code}", sets=sets).wait()
            self.assertEqual(run.code, code, run.log)
            self.assertEqual(self.restarts_of(run), 0, run.log)
            self.assertFalse(run.folder.exists(), list(run.folder.rglob("*")))

    def test_a_second_supervisor_is_refused(self):
        first = self.supervise(config=ENDLESS)
        first.hold()
        second = self.supervise(config=ENDLESS).wait()
        self.assertEqual(second.code, 73, second.log)
        self.assertIn(f"pid {first.process.pid} ", second.log)
        first.process.send_signal(signal.SIGUSR1)
        self.assertEqual(first.wait().code, 75, first.log)

    def test_signals_save_and_stop(self):
        """Each of them reaches the ranks as SIGUSR1; the same command then resumes from that save."""
        steps = 0
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            run = self.supervise(config=ENDLESS, sets=["checkpoint.save_checkpoints_steps=1000000"])
            pids = run.rank_pids()
            run.wait_for_step(steps + 2)
            run.process.send_signal(number)
            run.wait()
            self.assertEqual(run.code, 75, run.log)
            self.assertEqual(run.summary()["exit_reason"], "stopped", run.log)
            self.assertEqual(run.summary().get("resumed_from_step"), steps or None)
            self.assertGreater(run.summary()["steps"], steps)
            steps = run.summary()["steps"]
            self.assertEqual(len(pids), 2)
            self.assert_nothing_runs(run)

    def test_a_stop_whose_save_fails_says_so(self):
        run = self.supervise(config=ENDLESS, sets=["checkpoint.save_checkpoints_steps=1000000"])
        run.wait_for_step(2)
        shutil.rmtree(run.folder / "checkpoints", ignore_errors=True)
        (run.folder / "checkpoints").write_text("in the way of every save")
        run.process.send_signal(signal.SIGUSR1)
        run.wait()
        self.assertEqual(run.code, 74, run.log)
        self.assertNotIn("the last checkpoint is kept", run.log)
        self.assertIn("[launch] stop requested, but the ranks ended with 74: see the log above", run.log)
        self.assertEqual(self.restarts_of(run), 0, run.log)

    def test_a_host_that_cannot_be_reached_at_the_start_is_left_out(self):
        run = self.supervise(sets=["train.max_steps=4", "eval.every_epochs=0"],
                             arguments=["--hosts", f"{socket.gethostname()}:1,no-such-host.invalid:1", "--min-ranks", "1"]).wait()
        self.assertEqual(run.code, 0, run.log)
        self.assertIn("host no-such-host.invalid has failed and is excluded", run.log)
        self.assertEqual(run.summary()["world_size"], 1)

    def test_what_does_not_end_in_time_is_killed(self):
        """Ranks that hang cannot save: a second SIGINT ends them now, and so does the end of the grace."""
        for name, ask_again, arguments in (("twice", True, []), ("late", False, ["--grace", "1"])):
            run = self.supervise(run=name, config=ENDLESS, arguments=arguments)
            for pid in run.rank_pids().values():
                os.kill(pid, signal.SIGSTOP)
            with within(10, "the end of ranks that hang"):
                run.process.send_signal(signal.SIGINT)
                if ask_again:
                    wait_for(lambda: not is_pending(run.process.pid, signal.SIGINT), "the first SIGINT to be taken")
                    run.process.send_signal(signal.SIGINT)
                run.wait()
            self.assertEqual(run.code, 75, run.log)
            self.assertIn("ended on request (mpirun: 137)", run.log)
            self.assert_nothing_runs(run)

    def supervise_into(self, writer, *sets):
        """A run of two ranks that writes its log to this end of a pipe."""
        folder = self.folder / "run"
        words = [LOCKSTEP, "run", ENDLESS, "-n", 2, "--set", f"run.project_dir={folder}", "--set", "metrics.listen='127.0.0.1:0'", "--set", "run.threads=1",
                 "--set", "summary.progress_secs=0.000001", *(word for one in sets for word in ("--set", one))]
        # mpirun makes the stdout that it shares with us one that never blocks: stderr is apart
        process = subprocess.Popen([*map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=writer, cwd=SOURCE)
        self.started.append(process)
        self.addCleanup(self._end_processes_of, folder)
        os.close(writer)
        return Run(process, folder)

    def test_a_log_that_nobody_reads_keeps_no_signal_waiting(self):
        """The log's reader stalls, as with Ctrl-S: the ranks save and stop all the same."""
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        self.addCleanup(os.close, reader)
        full = os.dup(writer)
        run = self.supervise_into(writer)
        full_poll = select.poll()
        full_poll.register(full, select.POLLOUT)
        wait_for(lambda: not full_poll.poll(0), "the pipe to be full")
        os.close(full)
        run.wait_for_step(20)
        run.process.send_signal(signal.SIGTERM)
        self.assertEqual(run.process.wait(25), 75)
        self.assertEqual(run.summary()["exit_reason"], "stopped")
        self.assert_nothing_runs(run)

    def test_a_reader_of_the_log_that_goes_ends_nothing(self):
        """The log's reader ends, like `| head`, or a log shipper that restarts."""
        reader, writer = os.pipe()
        run = self.supervise_into(writer)
        os.read(reader, 10)
        os.close(reader)
        run.wait_for_step(50)
        run.process.send_signal(signal.SIGUSR1)
        self.assertEqual(run.process.wait(60), 75)
        self.assertEqual(run.summary()["exit_reason"], "stopped")

    def test_a_wish_to_save_waits_until_ranks_can_take_it(self):
        """SIGUSR2 while the ranks are loaded: mpirun and they would die of it."""
        def programs(run):
            return [os.path.basename(words_of(pid)[0]) for pid in processes_of(run.folder) if words_of(pid)]

        for program in counted("SIGUSR2 in the moment in which a program begins ended no run", ("mpirun", "lockstepd")):
            run = self.supervise(run=program, config=ENDLESS, sets=["train.max_steps=20", "eval.every_epochs=0"])
            wait_for(lambda run=run, program=program: program in programs(run), program)
            run.process.send_signal(signal.SIGUSR2)
            self.assertEqual(run.wait().code, 0, run.log)
            self.assertEqual(self.restarts_of(run), 0, run.log)

    def test_a_killed_supervisor_leaves_nothing_running(self):
        run = self.supervise(config=ENDLESS)
        run.rank_pids()
        run.process.kill()
        run.wait()
        self.assert_nothing_runs(run)

    def test_mpirun_gets_the_names_of_open_mpi_4_and_5_unless_they_are_set(self):
        folder = self.folder / "bin"
        folder.mkdir()
        (folder / "mpirun").write_text(f'#!/bin/sh\nenv >{self.folder}/environment.$$\nmv {self.folder}/environment.$$ {self.folder}/environment\nPATH="${{PATH#*:}}" exec mpirun "$@"\n')
        (folder / "mpirun").chmod(0o755)
        names = {"OMPI_MCA_orte_tmpdir_base": "PRTE_MCA_prte_tmpdir_base", "OMPI_MCA_odls_base_sigkill_timeout": "PRTE_MCA_odls_base_sigkill_timeout"}

        def given(start):
            start({"PATH": f"{folder}:{os.environ['PATH']}"})
            values = dict(line.split("=", 1) for line in (self.folder / "environment").read_text().splitlines() if "=" in line)
            return [[values.get(name) for name in pair] for pair in names.items()]

        def supervised(environment, **more):
            run = self.supervise(ranks=1, sets=["train.max_steps=2"], arguments=["--spare", "1"], environment={**environment, **more}).wait()
            self.assertEqual(run.code, 0, run.log)

        def script(environment):
            subprocess.run([SOURCE / "launch/mpirun.sh", "1", "true"], env={**os.environ, **environment}, check=True, timeout=60)

        for start, timeout in ((supervised, None), (script, None)):
            (first, second), timeouts = given(start)
            self.assertTrue(first and first == second, (first, second))
            self.assertEqual(timeouts, [timeout, timeout])
        own = {"PRTE_MCA_prte_tmpdir_base": "/tmp", "OMPI_MCA_odls_base_sigkill_timeout": "2"}
        self.assertEqual(given(lambda environment: supervised({**environment, **own})), [[None, "/tmp"], ["2", None]])
        self.assertEqual(given(lambda environment: script({**environment, **own})), [[None, "/tmp"], ["2", None]])

    def test_no_mpirun_is_an_error(self):
        run = self.supervise(environment={"PATH": "/nowhere"}).wait()
        self.assertEqual(run.code, 69, run.log)
        self.assertIn("cannot start mpirun: No such file or directory; is it installed", run.log)

    def test_ranks_that_mpi_does_not_join_do_not_train_each_for_itself(self):
        """Each process is a world of its own, like under torchrun, and under srun without pmix. Under mpirun such variables say nothing."""
        torchrun, srun = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"}
        for name, variables, ranks in (("torchrun", torchrun, 2), ("srun", srun, 4)):
            folder = self.folder / name
            done = subprocess.run([LOCKSTEPD, "--config", DIGITS, "--set", f"run.project_dir={folder}", "--set", "train.max_steps=2"], capture_output=True,
                                  text=True, cwd=SOURCE, env={**os.environ, **variables}, check=False)
            self.assertEqual(done.returncode, 78, done.stderr)
            self.assertIn(f"{name}'s variables say {ranks} ranks, MPI sees 1: start them with mpirun, or srun --mpi=pmix", done.stderr)
            self.assertFalse(folder.exists())
        run = self.train(run="mpirun", sets=["train.max_steps=2", "eval.every_epochs=0"], environment={**torchrun, "WORLD_SIZE": "4", **srun})
        self.assertEqual(run.summary()["world_size"], 2)

    def test_usage(self):
        for arguments, text in ((["-n", "4", "--hosts", "n1:2"], "the hosts have 2 slots"), (["--hosts", "n1,n1"], "'n1' is listed twice"),
                                (["--hosts", "localhost:1,127.0.0.1:2"], "'localhost' and '127.0.0.1' are names of one host (this host): name it once, with the slots of both, as localhost:3"),
                                (["-n", "2", "--min-ranks", "3"], "--min-ranks 3 is above")):
            said = self.tool("run", ENDLESS, *arguments, "--set", f"run.project_dir={self.folder / 'run'}", expect=64)
            self.assertIn(text, said)
        self.assertIn("lockstep run configs/digits.yaml", self.tool("run", "--help"))

    def require_two_hosts(self):
        """Skips the test where there can be no such hosts."""
        if subprocess.run([NETNS, "exec", NETNS, "on", "a", "true"], capture_output=True, check=False).returncode == 77:
            self.skipTest("network namespaces are not permitted here")

    def on_two_hosts(self, before, **more):
        """A run whose `lockstep run` is on host a."""
        self.require_two_hosts()
        addresses = {"OMPI_MCA_oob_tcp_if_include": "10.231.7.0/24", "OMPI_MCA_btl_tcp_if_include": "10.231.7.0/24"}
        environment = {"OMPI_MCA_plm_rsh_agent": f"{NETNS} agent", **addresses, **more.pop("environment", {})}
        return self.supervise(before=before, environment=environment, **more)

    def test_spares_of_two_hosts(self):
        """Two ranks and a spare on each. Processes of one host do not see those of the other."""
        self.require_two_hosts()
        sets = [*SAVES, "sync.share_weights=off"]
        unbroken = self.train(4, run="unbroken", sets=sets)
        faults = soak.rounds([("kill", 3), ("stop", 2), ("kill", 0)], [("kill", rank) for rank in (1, 2)] + [("stop", rank) for rank in (0, 1, 3)])
        for action, rank in faults:
            with self.subTest(action=action, rank=rank):
                shutil.rmtree(self.folder / "run", ignore_errors=True)
                run = self.on_two_hosts([NETNS, "exec", "--processes", NETNS, "on", "a"], ranks=4, sets=[*sets, "sync.timeout_s=3"],
                                        arguments=["--hosts", "lockstep-a:2,lockstep-b:2", "--spare", "2", "--program", FAULTY_RANK],
                                        environment=fault(action, rank, 70))
                self.assertEqual(run.wait().code, 0, run.log)
                self.assertRegex(run.log, rf"rank {rank} is lost: process \d+ on lockstep-{'aabb'[rank]} takes its place")
                self.assertEqual(self.restarts_of(run), 0, run.log)
                self.assertEqual(run.summary()["parameters_sha256"], unbroken.summary()["parameters_sha256"])
                self.assertEqual(run.steps(), unbroken.steps())

    def test_a_lost_spare_of_another_host_does_not_matter(self):
        """All processes hear of it: one that does not would wait for it at the end, as MPI does."""
        self.require_two_hosts()
        for ranks, hosts in soak.rounds([(4, "lockstep-a:2,lockstep-b:2")], [(2, "lockstep-a:1,lockstep-b:1")]):
            with self.subTest(hosts=hosts):
                shutil.rmtree(self.folder / "run", ignore_errors=True)
                run = self.on_two_hosts([NETNS, "exec", "--processes", NETNS, "on", "a"], ranks=ranks, sets=["train.max_steps=600", "eval.every_epochs=0"],
                                        arguments=["--hosts", hosts, "--spare", "2"])
                run.wait_for_step(1)
                spare = [pid for pid in processes_of(run.folder) if environment_of(pid).get("OMPI_COMM_WORLD_RANK") == str(ranks)]
                os.kill(spare[0], signal.SIGKILL)
                self.assertEqual(run.wait().code, 0, run.log)
                self.assertEqual(self.restarts_of(run), 0, run.log)
                self.assert_nothing_runs(run)

    def test_a_cut_link_leaves_the_host_out(self):
        """The link between two hosts fails: the run continues with the ranks of the remaining one."""
        run = self.on_two_hosts(
            [NETNS, "exec", "sh", "-c", f'"$0" on a "$@" & pid=$!; sleep 1; until ls '
             f'{self.folder}/run/checkpoints/*.index; do kill -0 $pid || break; sleep 0.1; done 2>/dev/null; "$0" cut; wait $pid', NETNS],
            config=ENDLESS, sets=["train.max_steps=800", "checkpoint.save_checkpoints_steps=50", "sync.timeout_s=3", "checkpoint.timeout_s=3"],
            arguments=["--hosts", "lockstep-a:1,lockstep-b:1", "--min-ranks", "1"])
        run.wait(timeout_s=200)
        self.assertEqual(run.code, 0, run.log)
        self.assertIn("host lockstep-b has failed and is excluded", run.log)
        self.assertEqual(run.summary()["world_size"], 1)
        self.assertEqual(run.summary()["steps"], 800)


if __name__ == "__main__":
    unittest.main()
