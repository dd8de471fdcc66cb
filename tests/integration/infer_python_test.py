"""Callbacks in Python under `lockstep infer`: they store the same as their counterpart in a C++ plug-in, halt, fail with file and line, print."""
import contextlib
import json
import pathlib
import re
import sqlite3
import unittest

from harness import BUILD, SOURCE
from inference import InferTest
from stored import stored

FILE = pathlib.Path(__file__).parent / "programs/python/callbacks.py"
TWIN = BUILD / "examples/callback_plugin/libverdict.so"
NOT_SURE = 2**64 - 1  # -1
FEED = ("--feed", "{type: digits, split: test}")


def python(name, args="{}", **keys):
    more = "".join(f", {key}: {value}" for key, value in keys.items())
    return f"{{type: python, path: {FILE}, name: {name}, args: {args}{more}}}"


class InferPython(InferTest):
    def answer(self, section, name="infer.yaml", expect=0, **config):
        """Output, and the folder of the stored files."""
        config, results = self.config(f"batch_size: 50, {section}", name, **config)
        return self.infer("--saved_model", self.digits().folder / "saved_models/46", "--config", config, *FEED, expect=expect), results

    def test_a_python_callback_and_its_twin_in_cpp_store_the_same(self):
        saver = "tfrecords_saver: {keys: [classes, probabilities, targets]}"
        twins = {"cpp": "{min_probability: 0.3}", "python": python("Verdict", "{min_probability: 0.3}")}
        found = {}
        for language, verdict in twins.items():
            for staged in ("true", "false"):
                log, results = self.answer(f"run_config: {{use_multiprocessing: {staged}}}, callbacks: {{verdict: {verdict}, {saver}}}",
                                           f"{language}_{staged}.yaml", plugins=[TWIN])
                self.assertIn("8 iteration(s), 359 sample(s)", log)
                found[language, staged] = self.stored_files(results)
        classes = stored(results, "classes")
        self.assertEqual(len(classes), 359)
        self.assertGreater(len({number for number, in classes} - {NOT_SURE}), 3)
        self.assertIn([NOT_SURE], classes)
        for other in found.values():
            self.assertEqual(other, found["cpp", "true"])

    def test_N25_N26_none_halts_dependents_and_nobody_else(self):
        for staged in ("true", "false"):
            log, results = self.answer(
                f"run_config: {{use_multiprocessing: {staged}}}, callbacks: {{every: {python('Every', '{every: 3}')}, "
                "some: {type: tfrecords_saver, keys: [chosen]}, whole: {type: log, keys: [logits]}}", f"staged_{staged}.yaml")
            self.assertEqual(len(stored(results, "chosen")), 50 * 3)  # iterations 0, 3 and 6
            self.assertEqual(log.count("infer epoch 0 iteration"), 8)

    def test_a_connection_opened_in_begin_serves_iterations_and_end(self):
        for staged in ("true", "false"):
            _, results = self.answer(f"run_config: {{use_multiprocessing: {staged}}}, callbacks: {{table: {python('Table')}}}", f"table_{staged}.yaml")
            with contextlib.closing(sqlite3.connect(results / "table.db")) as rows:
                self.assertEqual(rows.execute("select count(*) from samples").fetchone(), (359,))

    def test_what_it_raises_has_file_and_line(self):
        lines = FILE.read_text().splitlines()
        line = next(i for i, text in enumerate(lines, 1) if 'KeyError("third iteration")' in text)
        for staged in ("true", "false"):
            log, _ = self.answer(f"run_config: {{use_multiprocessing: {staged}}}, callbacks: {{bad: {python('Bad', '{fault: raises}')}}}",
                                 expect=78)
            self.assertIn(f"[python] {FILE}:{line}: KeyError: 'third iteration'\n", log)
            self.assertIn("(callback 'bad', iteration 2)", log)

    def test_what_is_refused(self):
        for callback, code, said in (
                (python("Bad", "{fault: undeclared}"), 65, "returned key 'other', which its generated_keys() do not declare (callback 'mine', iteration 0)"),
                (python("Bad", "{fault: nobody_makes}"), 78, "reads 'logist', which no callback generates (did you mean 'logits'?)"),
                (python("Verdict", "{min_probabilty: 1}"), 78, "'inferer.callbacks.mine.args' says: "),
                (python("Verdict", min_probability=1), 78, "unknown key 'min_probability' in 'inferer.callbacks.mine'"),
                (python("Verdit"), 78, "has no 'Verdit', which 'inferer.callbacks.mine.name' names; it has Verdict"),
                ("{type: python, path: nowhere.py, name: Verdict}", 78, "nowhere.py: no such file, which 'inferer.callbacks.mine.path' names"),
                ("{type: python, name: Verdict}", 78, "path")):
            log, results = self.answer(f"callbacks: {{mine: {callback}}}", expect=code)
            self.assertIn(said, log)
            self.assertFalse(results.exists())

    def test_the_example_of_the_page_runs_and_what_it_prints_is_seen(self):
        page = (SOURCE / "docs/callbacks.md").read_text().split("## In Python")[1]
        code, section = (re.search(rf"^```{kind}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[1] for kind in ("python", "yaml"))
        (self.folder / "counts.py").write_text(code)
        config, results = self.config("batch_size: 50")
        indented = "".join("  " + line for line in section.splitlines(keepends=True))
        config.write_text(f"run: {{name: x, project_dir: {self.folder}}}\ninferer:\n  log_dir: {results}\n  feed: {{type: digits, split: test}}\n{indented}")
        log = self.infer("--saved_model", self.digits().folder / "saved_models/46", "--config", config)
        counts = json.loads((results / "counts.json").read_text())
        self.assertEqual((len(counts), sum(counts)), (10, 359))
        self.assertIn(f"counted {sum(counts)} samples", log)
        predictions = [json.loads(path.read_text())["classes"] for path in results.glob("*.json") if path.name != "counts.json"]
        self.assertEqual(counts, [predictions.count(number) for number in range(10)])


if __name__ == "__main__":
    unittest.main()
