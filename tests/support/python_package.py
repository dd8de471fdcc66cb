"""The Python package `lockstep` of a build, as a wheel would install it."""
import importlib.machinery
import importlib.util
import pathlib
import shutil

SOURCE = pathlib.Path(__file__).resolve().parents[2]


def make_wheel():
    """tools/make_wheel as a module."""
    loader = importlib.machinery.SourceFileLoader("make_wheel", str(SOURCE / "tools/make_wheel"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("make_wheel", loader))
    loader.exec_module(module)
    return module


def version_of(torch_folder):
    """Release of the torch in that folder: 2.11.0."""
    facts = {}
    exec((pathlib.Path(torch_folder) / "version.py").read_text(), facts)
    return str(facts["__version__"]).partition("+")[0]


def install(build, folder, torch_version):
    """Makes `import lockstep` possible where `folder` is in sys.path. Libraries and programs are links into the build."""
    package, facts = folder / "lockstep", folder / "lockstep-0.dist-info"
    package.mkdir(parents=True)
    facts.mkdir()
    for file in (SOURCE / "python/lockstep").glob("*.py"):
        shutil.copy(file, package)
    for name in ("bin", "lib"):
        (package / name).symlink_to(build / name)
    (package / "build_facts.py").write_text(f'VERSION = "0"\nTORCH = "{torch_version}"\n')
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: lockstep\nVersion: 0\n")
    (facts / "entry_points.txt").write_text(make_wheel().ENTRY_POINTS)
