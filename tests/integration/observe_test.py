"""What a running job shows: /metrics that promtool accepts, probes, targets.json; and what a CPU worker costs."""
import json
import pathlib
import re
import subprocess
import unittest

from harness import ENDLESS, SOURCE, LockstepTest, metric, wait_for

PROMTOOL = SOURCE / ".venv-test" / "bin" / "promtool"


def curl(address, path="/metrics"):
    done = subprocess.run(["curl", "-sS", "-m", "5", f"http://{address}{path}"], capture_output=True, text=True)
    return done.stdout


class Observe(LockstepTest):
    def start_long_run(self, ranks=2):
        run = self.start(ranks, config=ENDLESS)
        run.rank_pids()
        path = run.folder / "targets.json"
        wait_for(lambda: path.exists() and run.folder.joinpath("train/steps.csv").exists(), "targets.json")
        return run, json.loads(path.read_text())

    def test_metrics_during_a_run(self):
        run, targets = self.start_long_run()
        self.assertEqual([t["labels"]["rank"] for t in targets], ["0", "1"])
        self.assertTrue(all(t["labels"]["run"] == "digits" for t in targets))
        addresses = [t["targets"][0] for t in targets]
        wait_for(lambda: curl(addresses[0], "/readyz").startswith("ok"), "readiness")
        self.assertTrue(curl(addresses[1], "/livez").startswith("ok"))

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

    def test_the_slow_rank_is_the_one_that_does_not_wait(self):
        run = self.start_faulty("sleep", rank=1, step=20, sets=["train.max_steps=30"]).wait()
        self.assertEqual(run.code, 0, run.log)
        waited_s = [metric(run.last_page(rank), "lockstep_allreduce_exposed_seconds_total") for rank in (0, 1)]
        self.assertGreater(waited_s[0], waited_s[1] + 1)

    def test_each_signal_is_counted_under_its_own_name_in_the_last_step_too(self):
        run = self.start_faulty("every_signal", rank=1, step=9, sets=["train.max_steps=10"]).wait()
        self.assertEqual(run.code, 0, run.log)  # nothing is left to stop
        counts = {rank: {name: metric(run.last_page(rank), "lockstep_signals_total", signal=name)
                         for name in ("SIGHUP", "SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")} for rank in (0, 1)}
        self.assertEqual(counts[0], {"SIGHUP": 0, "SIGINT": 0, "SIGTERM": 0, "SIGUSR1": 0, "SIGUSR2": 0})
        self.assertEqual(counts[1], {"SIGHUP": 1, "SIGINT": 1, "SIGTERM": 1, "SIGUSR1": 1, "SIGUSR2": 2})

    def test_a_taken_port_gives_way_to_a_free_one(self):
        import socket
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", 0))
            holder.listen()
            port = holder.getsockname()[1]
            run = self.train(1, sets=[f"metrics.listen='127.0.0.1:{port}'", "train.max_steps=3"])
        self.assertRegex(run.log, rf"http://127.0.0.1:\d+/metrics \(port {port} was taken\)")
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
