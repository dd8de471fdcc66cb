"""Callbacks and traces of runs: one rank and two see the same, and nothing of training depends on it."""
import json
import pathlib
import re
import shutil
import signal
import subprocess
import time
import unittest

from exported import PYTHON, require_python, skips
from harness import BUILD, DIGITS, ENDLESS, LockstepTest, metric
from stored import examples

SHORT = ["train.max_steps=46", "eval.every_epochs=1", "eval.batch_size=50", "recipe=null"]
PYTHON_FILE = pathlib.Path(__file__).parent / "programs/python/callbacks.py"
TWIN = BUILD / "examples/callback_plugin/libverdict.so"
KPIS = ["callbacks.topk.k=[1, 3]", "callbacks.confusion.num_classes=10"]


def curves_of(folder):
    """{tag: {step: value}} of a folder's event files."""
    done = subprocess.run([PYTHON, pathlib.Path(__file__).with_name("run_tags.py"), folder], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return {tag: dict(points) for tag, points in json.loads(done.stdout)["scalars"].items()}


def own_spans(trace, rank):
    return [event for event in trace["traceEvents"] if event.get("cat") == "lockstep" and event["pid"] == rank]


class Callbacks(LockstepTest):
    def test_N52_N54_kpis_of_two_ranks_are_those_of_one_and_are_shown_everywhere(self):
        shown = []
        for ranks in (1, 2):
            run = self.train(ranks, run=f"run{ranks}", sets=[*SHORT, *KPIS, "run.deterministic=elastic", "eval.on_save=true",
                                                             "checkpoint.save_checkpoints_steps=23", "export.after_evaluation=true"])
            evaluation = run.summary()["eval"]
            kpis = evaluation["kpis"]
            self.assertEqual(sorted(kpis), ["top_1", "top_3"])
            self.assertAlmostEqual(kpis["top_1"], evaluation["accuracy"], places=12)
            self.assertGreater(kpis["top_3"], kpis["top_1"])
            page = run.last_page(0)
            for name, value in kpis.items():
                self.assertAlmostEqual(metric(page, "lockstep_kpi", mode="eval", kpi=name), value)
            published = json.loads((run.folder / "saved_models/46/kpi.json").read_text())
            self.assertEqual({name: published[name] for name in kpis}, kpis)
            counts = [[int(count) for count in line.split(",")]
                      for line in (run.folder / f"callbacks/eval/46{'/rank_000' if ranks == 2 else ''}/confusion.csv").read_text().splitlines()]
            self.assertEqual(sum(map(sum, counts)), 359)
            self.assertAlmostEqual(sum(counts[i][i] for i in range(10)) / 359, evaluation["accuracy"], places=12)
            shown.append((kpis, counts))
            if PYTHON.exists():
                curves = curves_of(run.folder / "eval")
                self.assertEqual(sorted(curves["kpi/top_1"]), [23, 46])
                self.assertAlmostEqual(curves["kpi/top_3"][46], kpis["top_3"], places=6)
                self.assertEqual(sorted(curves["loss/eval"]), [23, 46])
        self.assertEqual(shown[0], shown[1])
        if not PYTHON.exists():
            skips.missing_tool(f"there is no {PYTHON} (tools/setup test makes it)")

    def test_N28_N39_N52_a_saver_a_buffer_and_a_kpi_in_python_are_the_built_in_ones(self):
        def python(name, args="{}"):
            return f"{{type: python, path: {PYTHON_FILE}, name: {name}, args: {args}, modes: [eval]}}"

        found = []
        for ranks in (1, 2):
            run = self.train(ranks, run=f"run{ranks}", sets=[
                *SHORT, "callbacks.topk.k=[1]", f"callbacks.share={python('ShareRight')}", f"callbacks.texts={python('Texts')}",
                "callbacks.json={type: prediction_saver, keys: [logits], modes: [eval]}", f"callbacks.last={python('LastIteration')}",
                f"callbacks.sums={python('Sums')}", "callbacks.statistics={keys: [logits], modes: [eval]}", "run.deterministic=elastic"])
            evaluation = run.summary()["eval"]
            self.assertAlmostEqual(evaluation["kpis"]["share_right"], evaluation["kpis"]["top_1"], places=12)
            self.assertAlmostEqual(metric(run.last_page(0), "lockstep_kpi", mode="eval", kpi="share_right"), evaluation["accuracy"])
            folder = run.folder / "callbacks/eval/46"
            mine = {path.name: json.loads(path.read_text())["logits"] for path in folder.glob("**/text/*.json")}
            theirs = {path.name: json.loads(path.read_text())["logits"] for path in folder.glob("**/epoch_*.json") if path.parent.name != "text"}
            self.assertEqual(len(mine), 359)
            self.assertEqual(mine, theirs)
            statistics, sums = (json.loads(next(folder.glob(f"**/{name}*.json")).read_text()) for name in ("statistics", "sums"))
            self.assertEqual(sums["count"], 359)
            for mine, mean in zip(sums["sums"], statistics["logits"]["mean"], strict=True):
                self.assertAlmostEqual(mine, 359 * mean, places=3)
            found.append(evaluation["kpis"])
        # The last batches have other sizes, and the last bits of a sample's logits may depend on that.
        self.assertAlmostEqual(found[0]["mean_probability"], found[1]["mean_probability"], places=7)

    def test_no_bit_of_training_depends_on_callbacks(self):
        plain = self.train(2, run="plain", sets=SHORT).summary()
        watched = self.train(2, run="watched", sets=[
            *SHORT, *KPIS, "callbacks.log={every: 10, keys: [loss, learning_rate], modes: [train]}",
            "callbacks.statistics={keys: [inputs, logits], modes: [train, eval]}",
            "trainer.run_config.profile_hook_config.save_steps=20"])
        self.assertEqual(watched.summary()["parameters_sha256"], plain["parameters_sha256"])
        self.assertEqual(watched.summary()["eval"]["loss"], plain["eval"]["loss"])
        lines = re.findall(r"train epoch (\d+) iteration (\d+): .* loss (\S+)", watched.log)
        self.assertEqual([(int(epoch), int(iteration)) for epoch, iteration, _ in lines], [(0, 9), (0, 19), (1, 29), (1, 39)])
        losses = {row["step"]: row["loss"] for row in watched.steps()}
        self.assertAlmostEqual(float(lines[0][2].rstrip(",")), losses[10], places=5)
        train = json.loads((watched.folder / "callbacks/train/rank_000/statistics.json").read_text())
        self.assertEqual(train["inputs"]["count"], 2 * 1438)  # two epochs of both ranks
        self.assertEqual(train["logits"]["shape"], [10])

    def test_N36_N45_samples_of_each_evaluation_are_in_a_folder_of_its_own(self):
        run = self.train(2, sets=[*SHORT, "callbacks.tfrecords_saver={keys: [logits, targets], modes: [eval]}"])
        for step in (23, 46):
            records = [record for path in sorted(run.folder.glob(f"callbacks/eval/{step}/rank_*/*.tfrecord")) for record in examples(path)]
            self.assertEqual(len(records), 359)
            if step == 46:
                right = sum(record["logits"].index(max(record["logits"])) == record["targets"][0] for record in records)
                self.assertAlmostEqual(right / 359, run.summary()["eval"]["accuracy"], places=12)

    def test_an_evaluation_of_its_own_runs_them_too(self):
        run = self.train(1, sets=[*SHORT, *KPIS])
        kpis = run.summary()["eval"]["kpis"]
        self.tool("eval", DIGITS, *[word for text in (*SHORT, *KPIS, f"run.project_dir={run.folder}") for word in ("--set", text)])
        self.assertEqual(json.loads((run.folder / "eval/step-46.json").read_text())["kpis"], kpis)

    def test_N10_a_signal_ends_training_with_end(self):
        run = self.start(2, config=ENDLESS, sets=["callbacks.statistics={keys: [logits], modes: [train]}", "callbacks.topk={k: [1], modes: [train]}",
                                                       "checkpoint.save_checkpoints_steps=20"])
        run.wait_for_commit(20)
        run.process.send_signal(signal.SIGUSR1)
        self.assertEqual(run.wait().code, 75, run.log)
        self.assertTrue((run.folder / "callbacks/train/rank_000/statistics.json").exists())
        if PYTHON.exists():  # no KPI of the epoch that was not ended
            steps = curves_of(run.folder / "train").get("kpi/top_1", {})
            self.assertEqual([step for step in steps if step % 23], [])

    def test_N77_what_does_not_fit_is_refused_before_the_start(self):
        for sets, words in ((["callbacks.log={keys: [lss]}"], "callback 'log' reads 'lss', which no callback generates (did you mean 'loss'?)"),
                            (["callbacks.log={keys: [learning_rate], modes: [eval]}"], "reads 'learning_rate', which no callback generates"),
                            (["callbacks={lgo: {}}"], "unknown callback 'lgo'"),
                            (["callbacks.log.modes=[]"], "'modes' is empty"),
                            (["callbacks.topk.k=[1, 5]", "eval.metrics=[top_k]"], "callback 'topk' shows a KPI 'top_5', which is the name of a value of each evaluation"),
                            (["trainer.run_config.profile_hook_config={save_steps: 5, output_dir: x}"], "output_dir"),
                            (["trainer.run_config.profile_hook_config={show_memory: true}"], "give one of save_steps and save_secs"),
                            (["trainer.run_config.profile_hook_config={save_steps: 0}"], "save_steps"),
                            (["callbacks.confusion={num_classes: 3, modes: [eval]}"], "num_classes 3, and the targets have 10 classes"),
                            (["callbacks.confusion={num_classes: 9, modes: [train]}"], "num_classes 9, and the targets have 10 classes")):
            settings = [word for one in sets for word in ("--set", one)]
            self.assertIn(words, self.tool("check", DIGITS, *settings, expect=78))
            run = self.train(1, sets=[*SHORT, *sets], expect=78)
            self.assertIn(words, run.log)
            self.assertFalse(run.folder.exists())
        for sets, words in ((["callbacks={s: {type: summary, key: loss, as: image, every: 1, modes: [train]}}"], "needs a batch of samples"),
                            (["trainer.run_config.profile_hook_config={save_steps: 5, ranks: [7]}"], "names rank 7, and the world has 1 rank(s)")):
            self.assertIn(words, self.train(1, sets=[*SHORT, *sets], expect=78).log)

    def test_a_callback_that_fails_ends_all_ranks_and_names_itself(self):
        run = self.train(2, sets=[*SHORT, "callbacks.confusion={outputs: targets, num_classes: 10, modes: [train]}"], expect=65)
        self.assertRegex(run.log, r"'targets' has 1 samples and 'targets' has \d+; .* \(callback 'confusion', iteration 0\)")
        self.assertEqual(run.summary()["exit_reason"], "failed")


class OneClass(LockstepTest):
    """A recording class, unchanged, in the loops of training, evaluation and inference."""
    section = f"{{type: python, path: {PYTHON_FILE}, name: Recorder, args: {{key: inputs, run_on: all}}, modes: [train, eval, infer]}}"

    def test_N1_N4_N9_N11_N15_N16_N17_N18_N19_N20_N24_N51_one_class_sees_every_field_in_each_mode(self):
        require_python()
        for ranks in (1, 2):
            run = self.train(ranks, run=f"run{ranks}", sets=[*SHORT, f"callbacks.recorder={self.section}", "eval.on_save=true",
                                                             "checkpoint.save_checkpoints_steps=23", "export.after_evaluation=true"])
            for rank in range(ranks):
                own = f"/rank_{rank:03}" if ranks > 1 else ""
                here = {"rank": rank, "world_size": ranks, "has_writer": rank == 0}
                self.assert_calls(run.folder / f"callbacks/train{own}", "train", 46, 23, first_summary=1, epoch_of=lambda i: i // 23, **here)
                batches = 8 // ranks  # of 50 of the 359 samples
                for step in (23, 46):
                    self.assert_calls(run.folder / f"callbacks/eval/{step}{own}", "eval", batches, batches, first_summary=step - batches + 1,
                                      epoch_of=lambda _, step=step: (step - 1) // 23, **here)
            answers = self.folder / f"answers{ranks}"
            config = self.folder / "infer.yaml"
            for staged in ("true", "false"):
                config.write_text(f"run: {{name: x, project_dir: {run.folder}}}\n"
                                  f"inferer: {{log_dir: {answers}/{staged}, batch_size: 50, feed: {{type: digits, split: test}}, "
                                  f"run_config: {{use_multiprocessing: {staged}}}}}\ncallbacks: {{recorder: {self.section}}}\n")
                self.tool("infer", "--saved_model", "latest", "--config", config)
                self.assert_calls(answers / staged, "infer", 8, 8, first_summary=0, epoch_of=lambda _: 0, rank=0, world_size=1, has_writer=False)

    def assert_calls(self, folder, mode, num, per_epoch, first_summary, epoch_of, rank, world_size, has_writer):
        calls = json.loads((folder / "calls.json").read_text())
        epoch = [*["start", "iteration"] * per_epoch, *(["epoch"] if mode == "train" else [])]
        self.assertEqual([call[0] for call in calls], ["begin", *epoch * (num // per_epoch), "end"])
        for place, (call, *fields, info, seen_rank, seen_size, is_without_writer) in enumerate(call for call in calls if call[0] != "epoch"):
            number = min(max(place - 1, 0) // 2, num - 1)
            self.assertEqual(fields, [mode, mode == "train", str(folder), first_summary + number, per_epoch], (place, call))
            epoch, iteration, seconds, is_last = info
            self.assertEqual((epoch, iteration), (epoch_of(number), number), (place, call))
            self.assertEqual(seconds > 0, call in ("iteration", "end"), (place, call, seconds))
            self.assertEqual(is_last, mode == "infer" and number == num - 1, (place, call))
            self.assertEqual((seen_rank, seen_size, not is_without_writer), (rank, world_size, has_writer), (place, call))


class InPython(LockstepTest):
    def verdict(self, language, *more, expect=0):
        """A run on 2 ranks whose evaluations store a callback's results."""
        keys = {"cpp": "{type: verdict, min_probability: 0.3, modes: [eval]}",
                "python": f"{{type: python, path: {PYTHON_FILE}, name: Verdict, args: {{min_probability: 0.3}}, modes: [eval]}}"}
        return self.train(2, run=language, expect=expect, sets=[
            *SHORT, f"plugins=[{TWIN}]", "callbacks.mine=" + keys[language], *more,
            "callbacks.tfrecords_saver={keys: [classes, probabilities, targets], modes: [eval]}"])

    def test_a_python_callback_and_its_twin_in_cpp_store_the_same_in_evaluations(self):
        require_python()
        files = {}
        for language in ("cpp", "python"):
            folder = self.verdict(language).folder / "callbacks"
            files[language] = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.tfrecord"))}
        self.assertEqual(len(files["cpp"]), 4)  # of two ranks and two evaluations
        self.assertEqual(files["python"], files["cpp"])

    def test_a_plugin_beside_the_run_file_serves_exports_too(self):
        shutil.copy(TWIN, self.folder / "libtwin.so")
        config = self.folder / "run.yaml"
        config.write_text(DIGITS.read_text().replace("recipe: recipes/", f"recipe: {DIGITS.parent}/recipes/") + "plugins: [libtwin.so]\n")
        run = self.train(2, config=config, sets=["train.max_steps=6", "eval.on_save=true", "checkpoint.save_checkpoints_steps=3",
                                                 "export.after_evaluation=true"])
        self.assertTrue((run.folder / "saved_models/6/model.pt").exists(), run.log)

    def test_what_it_raises_in_training_ends_all_ranks_with_file_and_line(self):
        require_python()
        line = next(i for i, text in enumerate(PYTHON_FILE.read_text().splitlines(), 1) if 'KeyError("third iteration")' in text)
        bad = f"callbacks.bad={{type: python, path: {PYTHON_FILE}, name: Bad, args: {{fault: raises}}, modes: [train]}}"
        run = self.train(2, sets=[*SHORT, bad], expect=78)
        self.assertIn(f"{PYTHON_FILE}:{line}: KeyError: 'third iteration'", run.log)
        self.assertIn("(callback 'bad', iteration 2)", run.log)
        self.assertIn("KeyError: 'third iteration'", run.summary()["error"])

    def test_what_it_raises_on_one_rank_is_what_every_rank_reports(self):
        require_python()
        bad = f"callbacks.bad={{type: python, path: {PYTHON_FILE}, name: Bad, args: {{fault: raises_on_rank_1}}, modes: [train]}}"
        run = self.train(2, sets=[*SHORT, bad], expect=78)
        reports = [json.loads((run.folder / f"logs/lockstep-error-{rank}.json").read_text()) for rank in (0, 1)]
        self.assertEqual([report["exit_code"] for report in reports], [69, 78])  # rank 0 has lost a peer, which says why
        self.assertIn("KeyError: 'rank 1 alone'", reports[1]["message"])
        self.assertRegex(run.log, r"\| the run has failed with exit code 78: rank 1 on ")
        self.assertIn("KeyError: 'rank 1 alone'", run.summary()["error"])


class Traces(LockstepTest):
    def test_N73_N74_N75_N78_a_trace_holds_every_span_closed_and_nested_on_its_rank(self):
        run = self.train(2, sets=[*SHORT, "trainer.run_config.profile_hook_config={save_steps: 20, show_memory: true}", "sync.overlap=true"])
        self.assertEqual(sorted(path.name for path in run.folder.glob("timeline-*")), ["timeline-20.json", "timeline-40.json"])
        trace = json.loads((run.folder / "timeline-20.json").read_text())
        for rank in (0, 1):
            events = own_spans(trace, rank)
            names = [event["name"] for event in events]
            for name in ("data", "masks", "forward", "backward", "reducing", "wait for all-reduce", "optimizer"):
                self.assertIn(name, names)
            self.assertTrue(all(event["ph"] == "X" and event["dur"] >= 0 and event["ts"] >= 0 for event in events))
            operators = [event for event in trace["traceEvents"] if event.get("cat") == "cpu_op" and event["pid"] == rank]
            self.assertTrue(any(event["name"].startswith("aten::") for event in operators))
            forward = next(event for event in events if event["name"] == "forward")
            inside = [event for event in operators if "conv" in event["name"] and event["tid"] == forward["tid"] and
                      forward["ts"] <= event["ts"] and event["ts"] + event["dur"] <= forward["ts"] + forward["dur"] + 50]
            self.assertTrue(inside, "LibTorch's operators lie within Lockstep's spans")
            self.assert_nested(events)
        self.assertTrue(any(event.get("name") == "[memory]" for event in trace["traceEvents"]))

    def test_a_trace_keeps_the_rules_of_its_format(self):
        """Rules of the Trace Event Format for complete events and metadata, as Perfetto and chrome://tracing read it."""
        begin_s = time.time()
        run = self.train(2, sets=[*SHORT, "trainer.run_config.profile_hook_config={save_steps: 20}", "sync.overlap=true", "data.loader_threads=1",
                                  "data.eval.type=digits", "data.eval.split=test", "checkpoint.save_checkpoints_steps=20", "eval.on_save=true"])
        end_s = time.time()
        for path in sorted(run.folder.glob("timeline-*.json")):
            trace = json.loads(path.read_text())
            self.assertEqual(trace["displayTimeUnit"], "ms")
            events = trace["traceEvents"]
            complete = [event for event in events if event["ph"] == "X"]
            self.assertEqual({event["pid"] for event in events}, {0, 1}, "a process is a rank")
            for event in complete:
                self.assertTrue(event["ts"] >= 0 and event["dur"] >= 0 and event["name"] and isinstance(event["tid"], int), event)
            first_s = trace["baseTimeNanoseconds"] / 1e9
            last_s = first_s + max(event["ts"] + event["dur"] for event in complete) / 1e6
            self.assertTrue(begin_s < first_s < last_s < end_s, "timestamps are microseconds")
            named = {kind: {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == kind}
                     for kind in ("process_name", "thread_name")}
            self.assertEqual([name.split(" (")[0] for _, name in sorted(named["process_name"].items())], ["rank 0", "rank 1"])
            tracks = {(event["pid"], event["tid"]) for event in complete}
            self.assertEqual(tracks - set(named["thread_name"]), set(), "each thread has a name")
            for track in tracks:
                self.assert_nested([event for event in complete if (event["pid"], event["tid"]) == track])
            self.assert_what_happens_beside_steps(complete, named["thread_name"])

    def assert_what_happens_beside_steps(self, complete, thread_names):
        for rank in (0, 1):
            found = {(thread_names[rank, event["tid"]], event["name"]) for event in complete if event["pid"] == rank and event["cat"] == "lockstep"}
            for one in (("main", "forward"), ("main", "begin a save"), ("main", "evaluation"), ("save", "save"), ("save", "stage a save"),
                        ("all-reduce", "reducing")):
                self.assertIn(one, found)

    def assert_nested(self, events):
        """Two spans of one thread follow each other, or one holds the other."""
        for thread in {event["tid"] for event in events}:
            open_until = []
            for event in sorted((event for event in events if event["tid"] == thread), key=lambda event: (event["ts"], -event["dur"])):
                while open_until and open_until[-1] <= event["ts"]:
                    open_until.pop()
                if open_until:
                    self.assertLessEqual(event["ts"] + event["dur"], open_until[-1] + 0.01, event["name"])
                open_until.append(event["ts"] + event["dur"])

    def test_N93_a_file_of_the_trainer_alone(self):
        config = self.folder / "run.yaml"
        config.write_text(DIGITS.read_text().replace("recipe: recipes/", f"recipe: {DIGITS.parent}/recipes/") + "trainer: trainer.json\n")
        file = self.folder / "trainer.json"
        file.write_text(json.dumps({"run_config": {"profile_hook_config": {"save_steps": 5}},
                                    "callbacks": {"log": {"every": 5, "keys": ["loss"], "modes": ["train"]}}}))
        run = self.train(2, config=config, sets=["train.max_steps=6", "eval.every_epochs=0"])
        self.assertTrue((run.folder / "timeline-5.json").exists())
        self.assertIn("train epoch 0 iteration 4", run.log)
        file.write_text('{"run_config": {"profile_hook_config": {"save_step": 5}}}')
        refused = self.train(2, config=config, expect=78)
        self.assertIn("trainer.json:1", refused.log)
        self.assertIn("did you mean 'save_steps'", refused.log)

    def test_N74_N76_ranks_and_arrows_can_be_left_out(self):
        run = self.train(2, sets=[*SHORT, "trainer.run_config.profile_hook_config={save_secs: 0.05, show_dataflow: false, ranks: [1]}"])
        paths = sorted(run.folder.glob("timeline-*"))
        self.assertTrue(paths)
        trace = json.loads(paths[0].read_text())
        self.assertEqual({event["pid"] for event in trace["traceEvents"]}, {1})
        self.assertEqual([event for event in trace["traceEvents"] if event["ph"] in "stfi"], [])


if __name__ == "__main__":
    unittest.main()
