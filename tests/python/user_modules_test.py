"""How a user's files become modules, against what Python itself imports with -m."""
import email.message
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]


def load_loader():
    spec = importlib.util.spec_from_file_location("user_modules", SOURCE / "python/lockstep_glue/user_modules.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class UserModules(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lockstep-modules-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()
        self.loader = load_loader()
        self.path, self.names = list(sys.path), set(sys.modules)
        self.addCleanup(self.forget)

    def forget(self):
        self.loader.begin_job()
        self.assertEqual(sys.path, self.path)
        self.assertEqual(set(sys.modules) - self.names, set())

    def write(self, **files):
        """Files by path: `a__b` is a/b.py, `a__init` is a/__init__.py."""
        for name, text in files.items():
            parts = name.replace("__init", "__INIT").split("__")
            path = self.folder.joinpath(*parts[:-1], f"{parts[-1]}.py".replace("INIT", "__init__"))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def load(self, path):
        return self.loader.import_file(self.folder / path)

    def value(self, path):
        return self.load(path).value

    def same_as_python(self, path, module, root="."):
        """The value of a file; `python -m` must find the same."""
        done = subprocess.run([sys.executable, "-c", f"import importlib; print(importlib.import_module({module!r}).value)"],
                              cwd=self.folder / root, capture_output=True, text=True, check=True)
        self.assertEqual(str(self.value(path)), done.stdout.strip())

    def test_relative_imports_in_packages(self):
        self.write(pkg__init="order = []", pkg__layers="width = 3", pkg__net="from .layers import width\nfrom . import order\nvalue = width, order")
        self.same_as_python("pkg/net.py", "pkg.net")
        self.assertIs(sys.modules["pkg"].net, self.load("pkg/net.py"))

    def test_several_levels_with_and_without_init(self):
        self.write(a__init="", a__base="x = 1", a__b__c__net="from ...base import x\nfrom ..near import y\nfrom .own import z\nvalue = x, y, z",
                   a__b__near="y = 2", a__b__c__own="from ..near import y\nz = y + 1")
        self.same_as_python("a/b/c/net.py", "a.b.c.net")
        self.write(plain__net="from .own import z\nvalue = z", plain__own="z = 5")
        self.same_as_python("plain/net.py", "plain.net")

    def test_circular_imports_and_an_init_that_imports_the_file(self):
        self.write(pkg__init="from .net import Net", pkg__net="from . import layers\nclass Net: pass\nvalue = layers.later().__name__",
                   pkg__layers="from . import net\ndef later(): return net.Net")
        self.same_as_python("pkg/net.py", "pkg.net")
        self.assertIs(self.load("pkg/__init__.py").Net, self.load("pkg/net.py").Net)
        self.write(first="import second\nname = 'first'\nvalue = second.later()", second="import first\ndef later(): return first.name")
        self.assertEqual(self.value("first.py"), "first")

    def test_absolute_imports_of_the_package_and_beside_it(self):
        self.write(pkg__init="", pkg__layers="width = 3", helpers="extra = 4", pkg__net="from pkg.layers import width\nfrom helpers import extra\nvalue = width, extra")
        self.same_as_python("pkg/net.py", "pkg.net")

    def test_the_folder_of_a_file_in_a_package_stays_importable(self):
        self.write(pkg__init="", pkg__sibling_of_net="width = 3", pkg__net="import sibling_of_net\nvalue = sibling_of_net.width")
        self.assertEqual(self.value("pkg/net.py"), 3)

    def test_names_of_installed_modules(self):
        self.write(json="import json as there\nvalue = there.dumps([1])", pkg__init="", pkg__types="from . import queue\nvalue = queue.size", pkg__queue="size = 7")
        self.assertEqual(self.value("json.py"), "[1]")
        self.assertEqual(self.value("pkg/types.py"), 7)
        self.assertEqual((sys.modules["json"], sys.modules["types"]), (json, types))
        self.write(email__init="", email__parts="value = 8", email__net="from .parts import value")
        self.assertEqual(self.value("email/net.py"), 8)
        self.assertIs(sys.modules["email.message"], email.message)

    def test_equal_names_in_two_folders(self):
        for name in "ab":
            self.write(**{f"{name}__net": "import layers\nimport only\nvalue = layers.value, only.value", f"{name}__layers": f"value = {name!r}",
                          f"{name}__late": f"value = {name!r}", f"{name}__data": "import layers\nimport late\nassert late.value == layers.value\nvalue = layers"})
        self.write(a__only="value = 1", b__only="value = 2")
        net = self.load("a/net.py")
        self.assertEqual((net.value, self.value("b/net.py")), (("a", 1), ("b", 2)))
        self.assertEqual(self.value("a/data.py").value, "a")
        self.assertIs(self.value("a/data.py"), net.layers)
        self.assertEqual(self.value("b/data.py").value, "b")
        self.assertIs(self.load("a/net.py"), net)

    def test_equal_packages_in_two_folders(self):
        for name in "ab":
            self.write(**{f"{name}__pkg__init": "", f"{name}__pkg__x": f"x = {name!r}", f"{name}__pkg__net": "from pkg.x import x\nfrom . import x as m\nvalue = x + m.x"})
        self.assertEqual([self.value(f"{name}/pkg/net.py") for name in "aba"], ["aa", "bb", "aa"])

    def test_folders_with_dots_and_dashes(self):
        self.write(**{"v1.2__net": "from .own import value", "v1.2__own": "value = 1", "my-net__init": "", "my-net__net": "from .own import value", "my-net__own": "value = 2"})
        self.assertEqual((self.value("v1.2/net.py"), self.value("my-net/net.py")), (1, 2))

    def test_what_failed_is_loaded_anew(self):
        self.write(pkg__init="", pkg__net="from .layers import width\nfrom .late import wrong", pkg__layers="width = 3")
        for _ in range(2):
            with self.assertRaisesRegex(ModuleNotFoundError, "pkg.late"):
                self.load("pkg/net.py")
        self.assertNotIn("pkg.layers", sys.modules)
        self.write(pkg__late="wrong = 0", pkg__net="from .layers import width\nfrom .late import wrong\nvalue = width")
        self.assertEqual(self.value("pkg/net.py"), 3)

    def test_a_job_sees_changed_files(self):
        self.write(space__net="from .own import value", space__own="value = 1")
        self.assertEqual(self.value("space/net.py"), 1)
        self.loader.begin_job()
        self.write(space__own="value = 'two'")
        self.assertEqual(self.value("space/net.py"), "two")

    def test_a_climb_above_the_root_is_an_import_error(self):
        (self.folder / "net.py").write_text("from " + "." * 40 + "x import y")
        with self.assertRaises(ImportError):
            self.load("net.py")


if __name__ == "__main__":
    unittest.main()
