"""Common part of the tests of `lockstep infer`: a small run of digits, sections `inferer`, and the files that callbacks stored."""
import os
import subprocess

from harness import ANSWER_S, LOCKSTEP, LockstepTest

DIGITS_RUN = """version: 1.0.0
run: {name: digits}
model: {type: digits_net}
data: {train: {type: digits}, eval: {type: digits, split: test}, global_batch_size: 64}
optimizer: {type: momentum, learning_rate: 0.1}
train: {max_steps: 46}
checkpoint: {save_checkpoints_steps: 23}
eval: {on_save: true, batch_size: 100}
export: {after_evaluation: true}
"""


class InferTest(LockstepTest):
    def infer(self, *arguments, expect=0, environment=None):
        done = subprocess.run([LOCKSTEP, "infer", *map(str, arguments)], capture_output=True, text=True, timeout=ANSWER_S, cwd=self.folder,
                              env={**os.environ, **(environment or {})})
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def config(self, section, name="infer.yaml", project=None, plugins=()):
        """A file with this section `inferer` whose results go to the folder NAME without its ending."""
        path = self.folder / name
        results = self.folder / path.stem
        path.write_text(f"run: {{name: x, threads: 1, device: cpu, project_dir: {project or self.folder}}}\n"
                        f"plugins: [{', '.join(map(str, plugins))}]\n"
                        f"inferer: {{log_dir: {results}, {section}}}\n")
        return path, results

    def digits(self):
        path = self.shared_folder / "digits.yaml"
        path.write_text(DIGITS_RUN)
        return self.shared("digits", 1, config=path)

    def stored_files(self, results):
        return {str(path.relative_to(results)): path.read_bytes() for path in sorted(results.rglob("*")) if path.is_file()}
