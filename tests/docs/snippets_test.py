"""Every block and command of README.md and the pages is what its own tool takes; and a broken one of each kind is found."""
import collections
import concurrent.futures
import os
import sys
import unittest

import snippets

sys.path.insert(0, str(snippets.SOURCE / "tests/support"))
import skips

RUN = "run: {name: x}\nmodel: {type: digits_net}\ndata: {train: {type: digits}, global_batch_size: 64}\noptimizer: {learning_rate: 0.1}\ntrain: {max_steps: 2}\n"
# Pages whose YAML other tests read whole, with the files that it names: data.docs, RecipeDocs.
READ_ELSEWHERE = {"docs/data.md", "docs/recipe.md"}


def of(language, text):
    return snippets.faults_of(snippets.Block(language, text, 1))


class Judges(unittest.TestCase):
    def setUp(self):
        if not snippets.PROMTOOL.exists():
            skips.missing_tool(f"no {snippets.PROMTOOL} (tools/setup test makes it)")

    def expect(self, language, good, bad, message):
        self.assertEqual(of(language, good), [])
        self.assertRegex("\n".join(of(language, bad)), f"(?s){message}")

    def test_shell(self):
        self.expect("sh", "if true; then make run; fi\n", "if true; then make run\n", "bash: .*syntax error")
        self.expect("sh", "make test SLOW=1\n", "make tset\n", "no target 'tset'")
        self.expect("sh", "tools/setup test && launch/mpirun.sh 2 true\n", "tools/no_such_tool\n", "there is no tools/no_such_tool, nor is it built")
        self.expect("sh", "python3 -c \"import json\"\n", "python3 -c \"import\"\n", "Python: ")

    def test_commands_of_ours(self):
        self.expect("bash", "lockstep run configs/digits.yaml -n 2 \\\n  --max-restarts 3 -- --width 3\n", "lockstep run configs/digits.yaml \\\n  --max-restart 3\n",
                    "lockstep run has no option --max-restart$")
        self.expect("bash", "lockstep ckpt export DIR --format onnx -o x\n", "lockstep ckpt export DIR --from onnx\n", "lockstep ckpt export has no option --from$")
        self.expect("inline", "lockstep check FILE", "lockstep chek FILE", "no command 'chek'")
        self.expect("sh", "mpirun -n 2 lockstepd --config F --set a=b\n", "mpirun -n 2 lockstepd --konfig F\n", "lockstepd has no option --konfig")

    def test_run_files(self):
        self.expect("yaml", RUN, RUN.replace("max_steps", "max_stepz"), "unknown key 'max_stepz' in 'train'")
        self.expect("yaml", RUN, RUN.replace("digits_net", "digits_nett"), "digits_nett")
        self.expect("yaml", "checkpoint: {keep_best: eval.accuracy}\n", "checkpoint: {keep_bset: eval.accuracy}\n", "unknown key 'keep_bset' in 'checkpoint'")
        self.expect("yaml", "modifiers:\n  - !EpochRangeModifier {start_epoch: 0}\n", "run: {name: x\n", "YAML: ")

    def test_prometheus(self):
        self.expect("yaml", "scrape_configs:\n  - job_name: x\n    file_sd_configs: [{files: [/srv/targets/*.json]}]\n",
                    "scrape_configs:\n  - job_name: x\n    file_sd_configs: [{files: [/srv/*/targets.json]}]\n", "promtool: .*not valid for file discovery")
        self.expect("yaml", "- job_name: x\n  scrape_interval: 15s\n", "- job_name: x\n  scrape_intervall: 15s\n", "promtool: .*scrape_intervall")
        self.expect("yaml", "groups:\n- name: a\n  rules: [{alert: A, expr: up == 0}]\n", "groups:\n- name: a\n  rules: [{alert: A, expr: up ==}]\n", "promtool: ")
        self.expect("promql", "rate(a_total[5m]) * on (instance) group_left (rank) b\n", "rate(a_total) *\n", "promtool: ")
        self.expect("yaml", "basic_auth_users:\n  prometheus: $2y$10$...\n", "basic_auth_userz:\n  x: y\ntls_server_config: {}\n", "promtool: ")

    def test_kubernetes(self):
        self.expect("yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {a: b}\n", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: [a]\n", ".")

    def test_python_and_json(self):
        self.expect("python", "import lockstep\n", "import lockstep as\n", "Python: ")
        self.expect("json", '{"a": 1}', '{"a": 1,}', "JSON: ")

    def test_a_block_without_a_language_has_no_judge(self):
        self.assertEqual(of("text", "anything"), [])
        self.assertIn("no judge for a block of ''", of("", "anything")[0])

    def test_blocks_are_found(self):
        page = "Say `lockstep check F`.\n\n```yaml\na: 1\n```\n\n    make run   # all\n\n    2 ranks: 3.0e-06\n\n- one\n\n  ```sh\n  make test\n  ```\n"
        self.assertEqual([(block.language, block.text, block.line) for block in snippets.blocks(page)],
                         [("inline", "lockstep check F", 1), ("yaml", "a: 1\n", 4), ("sh", "make run   # all\n", 7), ("sh", "make test\n", 14)])


class Pages(unittest.TestCase):
    def test_every_block_of_every_page(self):
        names = {str(path.relative_to(snippets.SOURCE)): path for path in snippets.pages()}
        blocks = [(name, block) for name, path in names.items() for block in snippets.blocks(path.read_text())
                  if block.language != "yaml" or name not in READ_ELSEWHERE]
        counts = collections.Counter(block.language for _, block in blocks)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            found = pool.map(lambda one: snippets.faults_of(one[1]), blocks)
        faults = [f"{name}:{block.line}: {fault}" for (name, block), told in zip(blocks, found) for fault in told]
        print(f"\nblocks and commands read: {dict(counts)}")
        for language in ("sh", "bash", "yaml", "python", "json", "promql", "inline"):
            self.assertGreater(counts[language], 0, language)
        self.assertEqual(faults, [], "\n".join(faults))


if __name__ == "__main__":
    unittest.main()
