"""Each rule of tools/check_rules.py lets a good tree pass and names what is wrong in a bad one."""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tools"))
import check_english  # noqa: E402
import check_rules  # noqa: E402

GOOD = {
    "base/error.h": "enum class ExitCode : int {\n  kDone = 0,\n  kUsage = 64,  ///< wrong command line\n};\n",
    "base/exit_class.h": "ExitFact{code_of(ExitCode::kDone), ExitClass::kDone},\nExitFact{code_of(ExitCode::kUsage), ExitClass::kJob},\n",
    "docs/exit_codes.md": "| 0 | `kDone` | done | all done |\n| 64 | `kUsage` | job | wrong |\n",
    "recal/schedule/modifier_table.cpp": 'AliasRow{"KSModifier", "PruningModifier", ""},\nown.add({"PruningModifier", read_pruning});\n',
    "docs/recipe.md": "### `!PruningModifier`: prune\n\nSee [codes](exit_codes.md#table), [the web](https://example.org).\n",
    "tests/base/CMakeLists.txt": "lockstep_test(base_tests SOURCES text_test.cpp)\n",
    "tests/base/text_test.cpp": "// a test\n",
    "tests/deep/CMakeLists.txt": "lockstep_test(deep_tests SOURCES inner/deep_test.cpp)\n",
    "tests/deep/inner/deep_test.cpp": "// a test\n",
    "tests/train/CMakeLists.txt": "lockstep_test(train_test SOURCES recipe_path_test.cpp)\n",
    "tests/train/recipe_path_test.cpp": "  - !KSModifier\n    {params: [a]}\n",
    "tests/whole/CMakeLists.txt": 'foreach(name IN ITEMS run other)\n  add_test(NAME x COMMAND python3 "${name}_test.py")\n',
    "tests/whole/run_test.py": "# a test\n",
}
MODULE = {"deep/CMakeLists.txt": "lockstep_module(deep SOURCES deep.cpp)\n"}
HOME = "/" + "work"  # in pieces, so that this file passes the rule itself


class CheckRules(unittest.TestCase):
    def breaches(self, changes):
        root = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-rules-"))
        self.addCleanup(shutil.rmtree, root)
        for name, text in {**GOOD, **changes}.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return check_rules.breaches(root)

    def expect(self, changes, *breaches):
        self.assertEqual(self.breaches(changes), list(breaches))

    def test_a_good_tree_passes(self):
        self.expect({})

    def test_tests_that_nobody_runs(self):
        self.expect({"tests/base/lost_test.cpp": "", "tests/whole/lost_test.py": "", "tests/nowhere/a_test.py": ""},
                    "tests/base/lost_test.cpp: no CMakeLists.txt runs this test",
                    "tests/nowhere/a_test.py: no CMakeLists.txt runs this test",
                    "tests/whole/lost_test.py: no CMakeLists.txt runs this test")

    def test_waits_and_clocks_of_tests(self):
        message = "sleeps or reads a clock: use tests/support/patience, or say in tests/slow_on_purpose.txt what it simulates"
        self.expect({"tests/whole/run_test.py": "import time\ntime." + "sleep(1)\n", "tests/base/text_test.cpp": "std::this_thread::" + "sleep_for(1s);\n",
                     "tests/support/waits.py": "time." + "sleep(1)\n"},
                    f"tests/base/text_test.cpp:1: {message}", f"tests/whole/run_test.py:2: {message}")
        self.expect({"tests/base/text_test.cpp": "steady_clock" + "::now()\n",
                     "tests/slow_on_purpose.txt": "# files\n\ntests/base/text_test.cpp a slow disk\ntests/whole/run_test.py a slow rank\n"},
                    "tests/slow_on_purpose.txt: tests/whole/run_test.py neither sleeps nor reads a clock")

    def test_events_that_a_case_is_named_after(self):
        case = "class A:\n    def test_what_goes_meanwhile(self):\n        {}\n"
        cmake = {"tests/integration/CMakeLists.txt": "x one_test.py\n"}
        self.expect({**cmake, "tests/integration/one_test.py": case.format("happened('events', 3)")})
        self.expect({**cmake, "tests/integration/one_test.py": case.format("print(3)")},
                    "tests/integration/one_test.py:2: test_what_goes_meanwhile does not count what happens meanwhile: happened(what, number)")

    def test_a_test_named_only_as_part_of_another(self):
        self.expect({"tests/base/CMakeLists.txt": "lockstep_test(base_tests SOURCES long_text_test.cpp)\n"},
                    "tests/base/text_test.cpp: no CMakeLists.txt runs this test")

    def test_exit_codes(self):
        self.expect({"docs/exit_codes.md": "| 0 | `kDone` | done | all done |\n| 65 | `kOld` | job | gone |\n"},
                    "docs/exit_codes.md: no row '| 64 | `kUsage` |'",
                    "docs/exit_codes.md: row 65 (kOld) is no exit code of base/error.h",
                    "docs/exit_codes.md: the class of kUsage is 'None', in base/exit_class.h it is 'job'")

    def test_exit_classes(self):
        self.expect({"docs/exit_codes.md": "| 0 | `kDone` | done | all done |\n| 64 | `kUsage` | host | wrong |\n"},
                    "docs/exit_codes.md: the class of kUsage is 'host', in base/exit_class.h it is 'job'")
        self.expect({"base/exit_class.h": "ExitFact{code_of(ExitCode::kDone), ExitClass::kDone},\n"},
                    "base/exit_class.h: no row for kUsage")

    def test_variables_that_live_as_long_as_the_process(self):
        text = ("std::atomic<int> g_calls{0};\nconst int kMost = 3;\nint run(int number);\nint run(int number) {\n  static Table all;\n  static const int once = 1;\n"
                "  static Table<Row> rows(\"rows\");\n  const int local = 2;\n}\n")
        said = "lives as long as the process: give it a ProcessState (base/process.h), and a line in tools/process_state.txt"
        self.expect({**MODULE, "deep/deep.cpp": text}, *(f"deep/deep.cpp {name}: {said}" for name in ("all", "g_calls", "rows")))
        lines = "# a comment: no line\ndeep/deep.cpp all: ProcessState\ndeep/deep.cpp g_calls: numbers\ndeep/deep.cpp rows: written first\n"
        self.expect({**MODULE, "deep/deep.cpp": text, "tools/process_state.txt": lines + "deep/deep.cpp gone: x\n"},
                    "tools/process_state.txt: deep/deep.cpp all: there is no ProcessState", "tools/process_state.txt: deep/deep.cpp gone: there is no such variable")
        self.expect({**MODULE, "deep/deep.cpp": text + "const ProcessState anew(\"all\", [] {});\n", "tools/process_state.txt": lines})

    def test_namespaces_of_another_folder(self):
        forward = "namespace lockstep::other {\nclass Part;\nstruct Row;\n}  // namespace lockstep::other\n"
        self.expect({**MODULE, "deep/deep.h": forward + "namespace lockstep::deep::parts {\nint run();\n}\n",
                     "tests/deep/a.h": "namespace lockstep::other {\nint run();\n}\n"})
        self.expect({**MODULE, "deep/deep.h": forward + "\nnamespace lockstep::deeper {\nclass Part;\nint run();\n}\n"},
                    "deep/deep.h:6: namespace lockstep::deeper is not lockstep::deep")

    def test_modifiers(self):
        self.expect({"docs/recipe.md": "### `!OtherModifier`\n"}, "docs/recipe.md: no section '### `!PruningModifier`'")

    def test_the_recipe_of_every_modifier(self):
        """One of its names counts; words of a comment do not."""
        self.expect({"tests/train/recipe_path_test.cpp": "# no !PruningModifier\n  - !OtherKSModifier {}\n"},
                    f"{check_rules.RECIPE_OF_ALL}: no item '- !PruningModifier', though its recipe is there to train with every modifier")

    def test_rules_that_read_nothing_say_so(self):
        self.assertEqual(len(self.breaches({"base/error.h": "", "base/exit_class.h": "", "docs/exit_codes.md": "", "recal/schedule/modifier_table.cpp": ""})), 3)

    def test_paths_of_one_machine(self):
        self.expect({"tools/run": f"# first line\ncd {HOME}/main\n", "docs/a.md": "`/ro" + "ot/x` and no/" + "work/x\n"},
                    "docs/a.md:1: names a folder of one machine", "tools/run:2: names a folder of one machine")

    def test_files_that_are_not_text_are_passed_over(self):
        self.expect({"data/picture.png": b"\xff\xfe" + f" {HOME}/".encode()})

    def test_links(self):
        self.expect({"docs/a.md": "\n[gone](no_such.md), ![plot](pictures/a.svg)\n`[code](x.md)`\n```\n[code](y.md)\n```\n"},
                    "docs/a.md:2: no_such.md does not exist", "docs/a.md:2: pictures/a.svg does not exist")

    def test_first_words_of_doc_comments(self):
        self.expect({"deep/a.h": "/// Returns a.\n/// Of all.\nint a();\n", "tests/base/a.h": "// What it is.\n"})
        for name in ("bench/a.cpp", "deep/a.h", "examples/a.cpp", "tests/base/a.h"):
            self.expect({name: "int b();\n  /// What it is.\n"},
                        f"{name}:2: a doc comment begins with 'What': begin with a noun, or a verb such as 'Returns'")

    def test_long_sentences(self):
        good = " ".join(["word"] * 25) + "."
        self.expect({"deep/a.h": f"// {good} {good}\n", "docs/a.md": f"# Title\n\n{good}\n\n- {good}\n- {good}\n\n```\n{good} {good[:-1]} more\n```\n"})
        said = "a sentence of 26 words, more than 25: One word word word word word ..."
        self.expect({"deep/a.h": f"int a;\n/// {good}\n/// One {good}\n", "docs/a.md": f"Title\n\nShort. One\n{good}\n", "bench/results/a.md": f"One {good}\n"},
                    f"deep/a.h:2: {said}", f"docs/a.md:3: {said}")

    def test_homemade_words(self):
        self.expect({"deep/a.cpp": '"who" + "ever"\n', "docs/a.md": "\nFor who" + "ever reads.\n"},
                    "docs/a.md:2: 'who" + "ever': say any rank that, callers that")

    def test_every_field_word_is_found(self):
        """Words are found in a literal of a source, a comment of a header and a page, but not in identifiers or code."""
        planted = ("nobody listens", "start it anew", "mend the disk", "it was told to stop", "is passed over", "training goes on", "beside this program",
                   "cannot be with cpu", "is cut short", "stands in the folder", "the last commit stands", "list of texts", "holds no save", "leave --ema out",
                   "takes it out")
        for words in planted:
            for name, line in (("deep/a.cpp", f'log("{words}");\n'), ("deep/a.h", f"int a;  // {words}\n"), ("docs/a.md", f"Here {words}\n")):
                found = [breach for breach in self.breaches({name: line}) if "': say " in breach]
                self.assertEqual(len(found), 1, f"{name}: {words}: {found}")
        self.expect({"deep/a.cpp": "count_anew();\npath beside = x;\nf(beside, is_beside_);\n"})

    def test_subjects_of_commits(self):
        good, long, bare = "dist, optim: touch kept gradients only", "dist: " + "x" * 67, "What was found"
        root = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-rules-"))
        self.addCleanup(shutil.rmtree, root)
        git = ["git", "-C", root, "-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run([*git, "init", "-q"], check=True)
        for subject in (good, long, bare):
            subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", subject], check=True)
        found = list(check_english.commit_subjects(root, []))
        self.assertEqual([breach.split("'")[1] for breach in found], [bare, long])


if __name__ == "__main__":
    unittest.main()
