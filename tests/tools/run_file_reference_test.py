"""docs/run_file.md holds the table that `lockstep reference` prints; tools/update_docs keeps it so."""
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


class RunFileReference(unittest.TestCase):
    maxDiff = None

    def test_the_page_holds_what_the_program_prints(self):
        reference = UPDATE.printed_reference(BUILD)
        self.assertIn("| `version` |", reference)
        _, between, _ = UPDATE.parts_of(UPDATE.RUN_FILE_PAGE.read_text())
        self.assertEqual(between, reference, "run tools/update_docs")

    def test_update_replaces_the_table_and_nothing_else(self):
        page = f"intro\n{UPDATE.BEGIN}old\n{UPDATE.END}outro\n"
        self.assertEqual(UPDATE.updated(page, "new\n"), f"intro\n{UPDATE.BEGIN}new\n{UPDATE.END}outro\n")

    def test_a_page_without_markers_is_refused(self):
        for page in ("intro\n", UPDATE.BEGIN, UPDATE.END + UPDATE.BEGIN):
            with self.assertRaises(SystemExit):
                UPDATE.updated(page, "new\n")


if __name__ == "__main__":
    unittest.main()
