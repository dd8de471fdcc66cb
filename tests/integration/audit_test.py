"""run.audit_every in whole runs: it changes no bit, and names the rank that computes wrong before the weights are touched."""
import pathlib
import socket
import unittest

from harness import DIGITS, LockstepTest

NET = pathlib.Path(__file__).parent / "programs/python/audited.py"
SHORT = ["run.deterministic=true", "train.max_steps=12", "recipe=null", "eval.every_epochs=0", "checkpoint.save_checkpoints_steps=5"]


def network(arguments="{}"):
    return f"model={{type: python, path: {NET}, name: Net, args: {arguments}}}"


class Audit(LockstepTest):
    def test_no_bit_of_a_run_depends_on_audits(self):
        for name, sets in (("digits", []), ("python", [network(), "train.batch_norm=broadcast"]), ("shared", ["sync.share_weights=on"])):
            plain, audited = (self.train(2, config=DIGITS, run=f"{name}{every}", sets=[*SHORT, *sets, f"run.audit_every={every}"]).summary() for every in (0, 1))
            self.assertEqual(audited["parameters_sha256"], plain["parameters_sha256"], name)
            self.assertEqual((self.folder / f"{name}1/logs/rank0.log").read_text().count("[audit] step 1: "), 1)

    def test_a_rank_that_computes_wrong_is_named_and_the_run_resumes_from_its_checkpoint(self):
        # Two passes a step: the audit of step 9 sees the first wrong one.
        wrong = [*SHORT, "run.audit_every=3", "eval.every_epochs=0"]
        run = self.train(3, config=DIGITS, run="run", sets=[*wrong, network("{wrong_rank: 1, first_wrong: 9}")], expect=76)
        self.assertRegex(run.log, rf"\[audit\] the audit of step 9 found wrong arithmetic: rank 1 \({socket.gethostname()}\) computed another gradient of "
                                  r"layers.0.weight than the other ranks from the samples of rank [0-2] \(item \d+ \[\d+, \d+\]: \S+ instead of \S+\); "
                                  "computed again, it was wrong again. No update was made with it")
        self.assertEqual([row["step"] for row in run.steps()][-1], 8)
        run = self.train(3, config=DIGITS, run="run", sets=[*wrong, network()])  # with a processor that is right
        self.assertEqual(run.summary()["steps"], 12)
        self.assertIn("resuming from step 5 ", run.log)

    def test_a_network_that_does_not_repeat_its_results_is_no_fault_of_a_host(self):
        run = self.train(2, config=DIGITS, run="run", sets=[*SHORT, "run.audit_every=3", network("{counts: true}")], expect=78)
        self.assertIn("the audit of step 3 found that the network does not repeat its results: its gradient of", run.log)

    def test_what_does_not_fit_is_refused_and_the_plan_tells_the_cost(self):
        every = ["--set", "run.audit_every=500", "--set", "run.deterministic=true"]
        for other, words in (("sync.sync_replicas=false", "ranks have different weights between two averages"),
                             ("train.batch_norm=sync", "the sums over all ranks would have another order"),
                             ("run.deterministic=false", "kernels may then give other bits each time")):
            self.assertIn(words, self.tool("check", DIGITS, *every, "--set", other, expect=78))
        self.assertIn("run.audit_every: one more forward and backward pass in 500 steps, 0.2 % of all\n", self.tool("plan", DIGITS, *every))
        self.assertIn("in each step, 100 % of all\n", self.tool("plan", DIGITS, *every, "--set", "run.audit_every=1"))
        self.assertNotIn("audit", self.tool("plan", DIGITS))


if __name__ == "__main__":
    unittest.main()
