"""tools/tidy.py looks again exactly at the files whose verdict may have changed, and remembers no file that has a finding."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
# Says which file it looked at; finds fault with every file that holds the word BAD or includes, by its whole path, one that does; EDITED is a header that someone edits meanwhile.
CLANG_TIDY = """#!/bin/sh
[ "$1" != --version ] || { printf 'version %s\\nHost CPU: %s\\n' "$CLANG_TIDY_VERSION" "$CPU"; exit; }
for file; do :; done
basename "$file" >>"$LOOKED_AT"
[ -z "$EDITED" ] || echo "int more();" >>"$EDITED"
! grep -h BAD "$file" $(sed -n 's|^#include "\\(/.*\\)"|\\1|p' "$file")
"""


class Tidy(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-tidy-")).resolve()
        self.addCleanup(shutil.rmtree, self.root)
        self.write("tools/tidy.py", (SOURCE / "tools/tidy.py").read_text())
        self.write("bin/clang-tidy", CLANG_TIDY).chmod(0o755)
        self.write(".clang-tidy", "Checks: '*'")
        self.write("base/low.h", "int low();")
        self.write("base/high.h", '#include "base/low.h"')
        self.write("base/one.cpp", '#include "base/high.h"')
        self.write("base/two.cpp", "#include <vector>")
        self.write("libtorch/include/torch/headeronly/version.h", "2.11")
        self.configure("-O2")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def configure(self, flags, output=""):
        include = self.root / "libtorch/include"
        self.write("build/compile_commands.json", json.dumps(
            [{"directory": str(self.root / "build"), "file": str(self.root / f"base/{name}.cpp"),
              "command": f"/usr/bin/ccache /usr/bin/c++ {flags} -I{self.root} -idirafter {include} "
                         f"-idirafter {include}/torch/csrc/api/include{output.format(name)} -c {self.root}/base/{name}.cpp"} for name in ("one", "two")]))

    def looked_at(self, code=0, version="14", cpu="some", edited="", cache=None):
        log = self.root / "looked_at"
        log.write_text("")
        done = subprocess.run(
            ["python3", self.root / "tools/tidy.py", self.root / "build", "base/one.cpp", "base/two.cpp"],
            capture_output=True, text=True, cwd=self.root,
            env={"PATH": f"{self.root}/bin:{os.environ['PATH']}", "XDG_CACHE_HOME": str(cache or self.root / "cache"),
                 "LOOKED_AT": str(log), "CLANG_TIDY_VERSION": version, "CPU": cpu, "EDITED": str(edited)})
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.said = done.stdout
        return sorted(log.read_text().split())

    def test_a_file_that_passed_is_not_looked_at_again(self):
        self.assertEqual(self.looked_at(), ["one.cpp", "two.cpp"])
        self.assertEqual(self.looked_at(), [])

    def test_a_changed_header_below_another_header_counts(self):
        self.looked_at()
        self.write("base/low.h", "long low();")
        self.assertEqual(self.looked_at(), ["one.cpp"])

    def test_another_version_setting_or_compile_flag_counts_for_all(self):
        self.looked_at()
        self.assertEqual(self.looked_at(version="15"), ["one.cpp", "two.cpp"])
        self.write(".clang-tidy", "Checks: 'bugprone-*'")
        self.assertEqual(self.looked_at(), ["one.cpp", "two.cpp"])
        self.configure("-O3")
        self.assertEqual(self.looked_at(), ["one.cpp", "two.cpp"])

    def test_another_libtorch_counts_for_all(self):
        self.looked_at()
        self.write("libtorch/include/torch/headeronly/version.h", "2.12")
        self.assertEqual(self.looked_at(), ["one.cpp", "two.cpp"])

    def test_another_checkout_libtorch_folder_or_processor_does_not_count(self):
        self.looked_at()
        cache = self.root / "cache"
        elsewhere = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-tidy-")).resolve()
        self.addCleanup(shutil.rmtree, elsewhere)
        shutil.copytree(self.root, elsewhere / "other", dirs_exist_ok=True)
        (elsewhere / "other/libtorch").rename(elsewhere / "libtorch")
        self.root = elsewhere / "other"
        self.configure("-O2")
        commands = self.root / "build/compile_commands.json"
        commands.write_text(commands.read_text().replace(f"{self.root}/libtorch", f"{elsewhere}/libtorch"))
        self.assertEqual(self.looked_at(cpu="another", cache=cache), [])
        self.write("base/two.cpp", "#include <map>")
        self.assertEqual(self.looked_at(cache=cache), ["two.cpp"])

    def test_a_file_of_two_programs_is_looked_at_with_the_first_ones_command(self):
        self.looked_at()
        commands = self.root / "build/compile_commands.json"
        entries = json.loads(commands.read_text())
        again = [{**entry, "command": entry["command"].replace("-O2", "-O1 -fsanitize=address")} for entry in entries]
        commands.write_text(json.dumps(entries + again))
        self.assertEqual(self.looked_at(), [])
        commands.write_text(json.dumps(again + entries))
        self.assertEqual(self.looked_at(), ["one.cpp", "two.cpp"])

    def test_a_file_that_was_edited_meanwhile_is_not_remembered(self):
        self.assertEqual(self.looked_at(edited=self.root / "base/low.h"), ["one.cpp", "two.cpp"])
        self.write("base/low.h", "int low();")  # the edit taken back: what was looked at was never this
        self.assertEqual(self.looked_at(), ["one.cpp"])

    def test_a_file_with_a_finding_fails_each_time(self):
        self.write("base/two.cpp", "BAD")
        self.assertEqual(self.looked_at(code=1), ["one.cpp", "two.cpp"])
        self.assertEqual(self.looked_at(code=1), ["two.cpp"])

    def test_files_of_one_target_are_looked_at_together(self):
        self.configure("-O2", output=" -o base/CMakeFiles/base.dir/{}.cpp.o")
        self.assertEqual(self.looked_at(), ["batch.cpp"])
        self.assertEqual(self.looked_at(), [])
        self.write("base/two.cpp", "#include <map>")
        self.assertEqual(self.looked_at(), ["two.cpp"])

    def test_a_batch_with_a_finding_is_looked_at_file_by_file(self):
        self.configure("-O2", output=" -o base/CMakeFiles/base.dir/{}.cpp.o")
        self.write("base/two.cpp", "BAD")
        self.assertEqual(self.looked_at(code=1), ["batch.cpp", "one.cpp", "two.cpp"])
        self.assertEqual(self.looked_at(code=1), ["two.cpp"])

    @unittest.skipUnless(shutil.which("clang-tidy"), "no clang-tidy; tools/setup lint installs it")
    def test_clang_tidy_itself_finds_what_stands_in_a_batch(self):
        (self.root / "bin/clang-tidy").unlink()
        self.write(".clang-tidy", (SOURCE / ".clang-tidy").read_text())
        self.configure("-std=c++20", output=" -o base/CMakeFiles/base.dir/{}.cpp.o")
        self.assertEqual(self.looked_at(), [])
        self.write("base/two.cpp", "int* nothing() { return 0; }")
        self.write("base/low.h", "int low();  // both are looked at again")
        self.assertEqual(self.looked_at(code=1), [])
        self.assertIn("modernize-use-nullptr", self.said)


if __name__ == "__main__":
    unittest.main()
