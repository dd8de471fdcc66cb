"""docs/run_file.md, docs/flags.md and docs/metrics.md hold the tables that `lockstep reference` prints; tools/update_docs keeps them so."""
import difflib
import importlib.machinery
import importlib.util
import os
import pathlib
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["LOCKSTEP_BUILD"])


def load_update_docs():
    loader = importlib.machinery.SourceFileLoader("update_docs", str(SOURCE / "tools" / "update_docs"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("update_docs", loader))
    loader.exec_module(module)
    return module


UPDATE = load_update_docs()


def differing_lines(page, table):
    """Lines that differ; hundreds are equal."""
    lines = list(difflib.unified_diff(page.splitlines(), table.splitlines(), lineterm="", n=0))[2:]
    return [line for line in lines if not line.startswith("@@")]


class RunFileReference(unittest.TestCase):
    maxDiff = None

    def test_the_pages_hold_what_the_program_prints(self):
        for command, row in (("reference", "| `version` |"), ("reference --flags", "| `--batch_size` |"),
                             ("reference --metrics", "| `lockstep_step` |")):
            table = UPDATE.printed(command, BUILD)
            self.assertIn(row, table)
            _, between, _ = UPDATE.parts_of(UPDATE.PAGES[command].read_text(), command)
            self.assertEqual(differing_lines(between, table), [], f"{UPDATE.PAGES[command].name} is out of date: run tools/update_docs")

    def test_only_lines_that_differ_are_shown(self):
        self.assertEqual(differing_lines("same\nold\n", "same\nnew\nmore\n"), ["-old", "+new", "+more"])

    def test_update_replaces_the_table_and_nothing_else(self):
        begin, end = UPDATE.markers("reference")
        page = f"intro\n{begin}old\n{end}outro\n"
        self.assertEqual(UPDATE.updated(page, "reference", "new\n"), f"intro\n{begin}new\n{end}outro\n")

    def test_a_page_without_markers_is_refused(self):
        begin, end = UPDATE.markers("reference")
        for page in ("intro\n", begin, end + begin):
            with self.assertRaises(SystemExit):
                UPDATE.updated(page, "reference", "new\n")


if __name__ == "__main__":
    unittest.main()
