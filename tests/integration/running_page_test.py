"""docs/running.md: each block of commands is run as it stands there, or a line above it, which readers do not see, says why not. slurm_test.py
runs those of Slurm."""
import collections
import json
import signal
import sys
import unittest

from harness import ENDLESS, SOURCE, Run
from running_page import BLOCK, PAGE, PageTest, blocks
sys.path.insert(0, str(SOURCE / "tests/support"))
from skips import missing_tool

KINDS = {"here": 5, "during a run": 3, "during a run, last": 1, "server": 1, "with the server": 1,
         "slurm": 1, "slurm, ended": 1, "slurm, running": 1, "kubernetes": 1}


class Page(PageTest):
    def test_each_block_is_run_or_says_why_not(self):
        found = BLOCK.findall(PAGE)
        self.assertEqual(len(found), PAGE.count("\n```bash\n"), "a block has no line '<!-- test: KIND -->' or '<!-- not run: WHY -->' right above it")
        self.assertEqual(collections.Counter(name for word, name, _ in found if word == "test"), KINDS)
        left_out = [(name, text.count("\n")) for word, name, text in found if word == "not run"]
        commands = sum(text.count("\n") for word, _, text in found if word == "test")
        print(f"\n{commands} lines of {len(found) - len(left_out)} blocks are run, {sum(count for _, count in left_out)} are not:")
        for name, count in left_out:
            print(f"  {count}: {name}")

    def test_on_this_host(self):
        self.environment["LOCKSTEP_TRAIN_MAX_STEPS"] = "60"  # of 690: what the commands do is the same
        for text in blocks("here"):
            self.shell(text)
        results = [json.loads((self.folder / "runs" / run / "summary.json").read_text()) for run in ("digits", "by_hand")]
        self.assertEqual([one["exit_reason"] for one in results], ["finished"] * 2)
        self.assertEqual(results[0]["parameters_sha256"], results[1]["parameters_sha256"])

    def endless(self):
        """`lockstep run` that resumes in runs/digits."""
        process = self.begin("lockstep", "run", ENDLESS, "-n", 2, "--set", "metrics.listen='127.0.0.1:0'")
        run = Run(process, self.folder / "runs/digits")
        run.wait_for_step(1)
        return run

    def test_beside_a_run(self):
        run = self.endless()
        for text in blocks("during a run"):
            said = self.shell(text)
            if "curl" in text:  # which ends with 0 on 403 and 404 too
                self.assertIn("noted_at_step", said)
        run.wait_for_step(run.status()["step"] + 2)  # a stop before the next step would find the change still to be made
        self.shell(blocks("during a run, last")[0])
        self.assertEqual(run.wait().code, 75, run.log)
        self.assertIn("log.level=debug from step", run.log)

    def test_a_queue(self):
        self.environment["LOCKSTEP_TRAIN_MAX_STEPS"] = "60"
        server = self.begin("bash", "-c", "exec " + blocks("server")[0])
        self.shell(blocks("with the server")[0].replace(" -f\n", "\n"))  # which ends with the job alone
        self.assertEqual(json.loads((self.folder / "jobs/jobs/1/result.json").read_text())["exit_code"], 0)
        server.send_signal(signal.SIGTERM)
        self.assertEqual(Run(server, self.folder).wait().code, 75)

    def test_kubernetes(self):
        self.shell(blocks("kubernetes")[0])
        python = SOURCE / ".venv-test/bin/python"
        if not python.exists():
            missing_tool("no .venv-test; tools/setup test makes it")
        self.shell(f"{python} {SOURCE}/tests/integration/programs/check_manifests.py digits_job.yaml")


if __name__ == "__main__":
    unittest.main()
