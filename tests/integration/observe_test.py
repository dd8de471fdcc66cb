"""Output of a running job: /metrics that promtool accepts, probes, targets.json; and the cost of a CPU worker."""
import json
import pathlib
import re
import socket
import subprocess
import sys
import unittest

from harness import BUILD, ENDLESS, PRUNE_EARLY, SOURCE, LockstepTest, metric, wait_for

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import skips
from ports import free_port

PYTHON = SOURCE / ".venv-test" / "bin" / "python"
FAULT_CALLS = BUILD / "tests" / "integration" / "libfault_calls.so"
PROMTOOL = SOURCE / ".venv-test" / "bin" / "promtool"


def curl(address, path="/metrics"):
    done = subprocess.run(["curl", "-sS", "-m", "5", f"http://{address}{path}"], capture_output=True, text=True)
    return done.stdout


class Observe(LockstepTest):
    def start_long_run(self, ranks=2, sets=()):
        run = self.start(ranks, config=ENDLESS, sets=sets)
        run.rank_pids()
        path = run.folder / "targets.json"
        wait_for(lambda: path.exists() and run.folder.joinpath("train/steps.csv").exists(), "targets.json")
        return run, json.loads(path.read_text())

    def test_metrics_during_a_run(self):
        run, targets = self.start_long_run(sets=[f"metrics.targets_dir={self.folder / 'all runs'}"])
        self.assertEqual([t["labels"]["rank"] for t in targets], ["0", "1"])
        [shared] = (self.folder / "all runs").iterdir()
        self.assertRegex(shared.name, r"^digits-[0-9a-f]{8}\.json$")
        self.assertEqual(json.loads(shared.read_text()), targets)
        self.assertTrue(all(t["labels"]["run"] == "digits" for t in targets))
        addresses = [t["targets"][0] for t in targets]
        wait_for(lambda: curl(addresses[0], "/readyz").startswith("ok"), "readiness")
        self.assertTrue(curl(addresses[1], "/livez").startswith("ok"))

        for target in targets:  # another run that takes the port of a killed one does not answer for it
            id_of_process = target["labels"]["__param_process"]
            self.assertIn("lockstep_steps_total", curl(target["targets"][0], f"/metrics?process={id_of_process}"))
            self.assertIn("another process used this address; its run has ended", curl(target["targets"][0], "/metrics?process=0123456789abcdef"))

        for address in addresses:
            first = curl(address)
            checked = subprocess.run([PROMTOOL, "check", "metrics"], input=first, capture_output=True, text=True)
            self.assertEqual((checked.returncode, checked.stdout, checked.stderr), (0, "", ""), address)
            for name in ("lockstep_steps_total", "lockstep_samples_total", "lockstep_allreduce_bytes_total",
                         "lockstep_step_duration_seconds_count", "process_cpu_seconds_total"):
                before = metric(first, name)
                wait_for(lambda: metric(curl(address), name) > before, f"{name} to move")
        page = curl(addresses[0])
        self.assertGreater(metric(page, "lockstep_train_loss"), 0)
        self.assertEqual(metric(page, "lockstep_world_ranks"), 2)
        self.assertNotIn("lockstep_train_loss", curl(addresses[1]))  # run series come from rank 0 alone

        run.process.send_signal(10)
        run.wait()
        self.assertEqual(run.code, 75)
        self.assertFalse((run.folder / "targets.json").exists())
        self.assertEqual(list((self.folder / "all runs").iterdir()), [])

    def test_N48_the_event_file_of_a_run_holds_its_curves(self):
        """Read by TensorFlow, compared with steps.csv and the summary; the resumed part replaces the old one."""
        sets = ["train.max_steps=120", "summary.save_summary_steps=5", "eval.every_epochs=2", "summary.per_layer=true",
                "summary.histogram_steps=60", "callbacks={inputs: {type: summary, key: inputs, as: image, every: 50, max_samples: 2, modes: [train]}}"]
        self.train(2, sets=["train.max_steps=100", *sets[1:]])
        run = self.train(2, sets=sets)
        self.assertIn("resuming from step 100", run.log)
        if not PYTHON.exists():
            skips.missing_tool(f"there is no {PYTHON} (tools/setup test makes it)")
        curves = {}
        done = subprocess.run([PYTHON, pathlib.Path(__file__).with_name("run_events.py"), *(run.folder / mode for mode in ("train", "eval"))],
                              capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, 0, done.stderr)
        for of_folder in json.loads(done.stdout):
            curves.update({tag: dict(points) for tag, points in of_folder.items()})
        rows = {row["step"]: row for row in run.steps() if row["step"] % 5 == 0 or row["step"] in (1, 101)}  # the first of each process
        self.assertEqual(len(rows), 26)
        for tag, column in (("loss/train", "loss"), ("lr", "learning_rate"), ("sparsity", "sparsity")):
            self.assertEqual(set(curves[tag]), set(rows), tag)
            for step, value in curves[tag].items():
                self.assertAlmostEqual(value, rows[step][column], delta=1e-5 * max(1, abs(value)), msg=f"{tag} at {step}")
        self.assertGreater(curves["sparsity"][120], 0)
        self.assertEqual(curves["weights/blocks/0/conv/weight"], {60: "histo", 120: "histo"})
        self.assertEqual(curves["run/settings"], {0: "tensor", 100: "tensor"})
        self.assertEqual(set(curves["inputs/0"].values()), {"image"})
        self.assertIn(51, curves["inputs/1"])
        self.assertNotIn("inputs/2", curves)
        summary = run.summary()
        last_eval = max(curves["accuracy/eval"])
        self.assertEqual(last_eval, 120)
        self.assertAlmostEqual(curves["accuracy/eval"][last_eval], summary["eval"]["accuracy"], delta=1e-6)
        self.assertAlmostEqual(curves["loss/eval"][last_eval], summary["eval"]["loss"], delta=1e-5)

    def test_a_full_disk_costs_points_of_curves_not_the_run(self):
        run = self.train(1, sets=["train.max_steps=40", "summary.save_summary_steps=10"],
                         environment={"LD_PRELOAD": str(FAULT_CALLS), "LOCKSTEP_FAULT_RANK": "0", "LOCKSTEP_FAULT_PATH": "tfevents",
                                      "LOCKSTEP_FAULT_CALL": "open", "LOCKSTEP_FAULT_AT": "1+", "LOCKSTEP_FAULT_DO": "ENOSPC"})
        for folder in ("train", "eval"):  # once of each
            self.assertEqual(len(re.findall(rf"TensorBoard points are lost, .*/{folder}/events", run.log)), 1, run.log)
        self.assertGreaterEqual(metric(run.last_page(0), "lockstep_tensorboard_write_errors_total"), 1)

    def test_a_restore_shows_as_such(self):
        """Held at the open of the save's data, until the pages have been read."""
        self.train(1, sets=["train.max_steps=10", "summary.progress_secs=0"])
        address = f"127.0.0.1:{free_port()}"
        report = self.folder / "held"
        run = self.start(1, sets=["train.max_steps=12", f"metrics.listen='{address}'"],
                         environment={"LD_PRELOAD": str(FAULT_CALLS), "LOCKSTEP_FAULT_RANK": "0", "LOCKSTEP_FAULT_PATH": ".data-",
                                      "LOCKSTEP_FAULT_CALL": "open", "LOCKSTEP_FAULT_AT": "1", "LOCKSTEP_FAULT_DO": "WAIT",
                                      "LOCKSTEP_FAULT_REPORT": str(report)})
        wait_for(report.exists, "the restore")
        page = curl(address)
        states = dict(re.findall(r'^lockstep_run_state\{state="(\w+)"\} (\d)', page, re.M))
        self.assertEqual([state for state, value in states.items() if value == "1"], ["restoring"])
        self.assertIn("a checkpoint is being restored", curl(address, "/livez?verbose"))
        pathlib.Path(f"{report}.go").touch()
        run.wait()
        self.assertEqual(run.code, 0, run.log)
        self.assertIn("resuming from step 10", run.log)
        self.assertRegex(run.last_page(0), r'lockstep_run_state\{state="finished"\} 1')
        total = metric(run.last_page(0), "lockstep_parameters")
        self.assertEqual(total, 25_866)
        self.assertEqual(metric(run.last_page(0), "lockstep_prunable_parameters"), total - 16 - 32 - 64 - 10)  # without biases

    def test_the_slow_rank_is_the_one_that_does_not_wait(self):
        run = self.start_faulty("sleep", rank=1, step=20, sets=["train.max_steps=30"]).wait()
        self.assertEqual(run.code, 0, run.log)
        waited_s = [metric(run.last_page(rank), "lockstep_allreduce_exposed_seconds_total") for rank in (0, 1)]
        self.assertGreater(waited_s[0], waited_s[1] + 1)

    def test_a_pruned_weight_that_comes_back_is_counted(self):
        """Updates keep zeros at zero, and look at it every 100 steps."""
        run = self.start_faulty("revive", rank="all", step=100, ranks=1, sets=[PRUNE_EARLY, "train.max_steps=102", "eval.every_epochs=0"]).wait()
        self.assertEqual(run.code, 0, run.log)
        self.assertEqual(metric(run.last_page(0), "lockstep_revived_weights_total"), 1)

    def test_each_signal_is_counted_under_its_own_name_in_the_last_step_too(self):
        run = self.start_faulty("every_signal", rank=1, step=9, sets=["train.max_steps=10"]).wait()
        self.assertEqual(run.code, 0, run.log)  # nothing is left to stop
        counts = {rank: {name: metric(run.last_page(rank), "lockstep_signals_total", signal=name)
                         for name in ("SIGHUP", "SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")} for rank in (0, 1)}
        self.assertEqual(counts[0], {"SIGHUP": 0, "SIGINT": 0, "SIGTERM": 0, "SIGUSR1": 0, "SIGUSR2": 0})
        self.assertEqual(counts[1], {"SIGHUP": 1, "SIGINT": 1, "SIGTERM": 1, "SIGUSR1": 1, "SIGUSR2": 2})

    def test_a_taken_port_gives_way_to_a_free_one(self):
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", 0))
            holder.listen()
            port = holder.getsockname()[1]
            run = self.train(1, sets=[f"metrics.listen='127.0.0.1:{port}'", "train.max_steps=3"])
        self.assertRegex(run.log, rf"http://127.0.0.1:\d+/metrics \(port {port} was in use\)")
        self.assertNotEqual(run.summary()["metrics_address"], f"127.0.0.1:{port}")

    def test_a_cpu_worker_is_small(self):
        run, _ = self.start_long_run()
        heavy = re.compile(r"libtorch_cuda|libcudnn|libcublas|libnccl|liblockstep_nccl")
        wait_for(lambda: len(run.folder.joinpath("train/steps.csv").read_text().splitlines()) > 100 or None, "100 steps")
        for rank, pid in run.rank_pids().items():
            libraries = set(re.findall(r"/\S+\.so[.\d]*", pathlib.Path(f"/proc/{pid}/maps").read_text()))
            self.assertTrue(any("libtorch_cpu" in name for name in libraries))
            self.assertEqual([name for name in libraries if heavy.search(name)], [])
            peak_kb = int(re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text())[1])
            print(f"rank {rank}: {peak_kb / 1024:.0f} MB resident at its peak")
            self.assertLess(peak_kb * 1024, 220e6)


if __name__ == "__main__":
    unittest.main()
