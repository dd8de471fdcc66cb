"""Arrows between folders: CMake refuses a cycle, check_layers.py an #include that no arrow allows."""
import os
import pathlib
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["LOCKSTEP_BUILD"])


def check_layers(source, layers):
    return subprocess.run(["python3", SOURCE / "tools/check_layers.py", source, layers], capture_output=True, text=True)


class Layers(unittest.TestCase):
    def test_the_project_keeps_to_its_arrows(self):
        done = check_layers(SOURCE, BUILD / "layers.txt")
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_a_wrong_include_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "low").mkdir()
            (root / "high").mkdir()
            (root / "low/a.h").write_text('#pragma once\n#include "high/b.h"\n')
            (root / "high/b.h").write_text('#include "low/a.h"\n')
            (root / "layers.txt").write_text("low: \nhigh: low\n")
            done = check_layers(root, root / "layers.txt")
            self.assertEqual(done.returncode, 1)
            self.assertEqual(done.stdout, "low/a.h:2: low may not include high\n")

    def check_sub_folders(self, layers, files):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            (root / "layers.txt").write_text(layers)
            return check_layers(root, root / "layers.txt").stdout

    def test_a_wrong_include_between_sub_folders_is_named(self):
        layers = "room:\nroom/low:\nroom/high: low\nroom/.: high\n"
        good = {"room/low/a.h": "", "room/high/b.h": '#include "room/low/a.h"\n', "room/c.h": '#include "room/low/a.h"\n'}
        self.assertIn("follow the declared dependencies", self.check_sub_folders(layers, good))
        bad = {"room/low/d.h": '#include "room/high/b.h"\n', "room/high/e.h": '\n#include "room/c.h"\n'}
        self.assertEqual(self.check_sub_folders(layers, {**good, **bad}),
                         "room/high/e.h:2: room/high may not include room/.\n"
                         "room/low/d.h:1: room/low may not include room/high\n")

    def test_sub_folders_are_declared_and_without_a_cycle(self):
        self.assertEqual(self.check_sub_folders("room:\nroom/low:\n", {"room/other/a.h": ""}),
                         "room/other/a.h: room/other is no declared folder of room\n")
        self.assertIn("room/low: uses itself, through room/high",
                      self.check_sub_folders("room:\nroom/low: high\nroom/high: low\n", {"room/low/a.h": ""}))

    def test_a_folder_may_stand_above_one_of_another_room(self):
        layers = "room:\nroom/low:\nroom/high: low /other/.\nother:\nother/.: /room/low\n"
        good = {"room/low/a.h": "", "other/b.h": '#include "room/low/a.h"\n', "room/high/c.h": '#include "other/b.h"\n#include "room/low/a.h"\n'}
        self.assertIn("follow the declared dependencies", self.check_sub_folders(layers, good))
        bad = {"room/low/d.h": '#include "other/b.h"\n', "other/e.h": '#include "room/high/c.h"\n'}
        self.assertEqual(self.check_sub_folders(layers, {**good, **bad}),
                         "room/low/d.h:1: room/low may not include other/.\n"
                         "other/e.h:1: other/. may not include room/high\n")
        self.assertIn("room/low: uses itself, through other/.", self.check_sub_folders(layers.replace("room/low:", "room/low: /other/."), good))

    def test_a_cycle_fails_at_configure(self):
        for uses, works in (("", True), ("USES high", False)):
            with tempfile.TemporaryDirectory() as folder:
                root = pathlib.Path(folder)
                (root / "x.cpp").write_text("int x;\n")
                (root / "CMakeLists.txt").write_text(
                    "cmake_minimum_required(VERSION 3.25)\nproject(cycle CXX)\n"
                    "add_library(LibTorch::cpu INTERFACE IMPORTED)\n"
                    f"include({SOURCE}/cmake/LockstepModule.cmake)\n"
                    f"lockstep_module(low SOURCES x.cpp {uses})\n"
                    "lockstep_module(high SOURCES x.cpp USES low)\n")
                done = subprocess.run(["cmake", "-G", "Ninja", "-S", root, "-B", root / "build"], capture_output=True, text=True)
                self.assertEqual(done.returncode == 0, works, done.stderr)
                if not works:
                    self.assertIn("cyclic dependencies", done.stderr)


if __name__ == "__main__":
    unittest.main()
