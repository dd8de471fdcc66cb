"""Modules of a user's files: packages, and folders that use the same names."""
import ast
import contextlib
import importlib
import importlib.machinery
import importlib.util
import pathlib
import sys

FOLDERS = {}  # from which files were loaded: Folder
RENAMED = {}  # part of a module's name: the file or folder of another name


class Folder:
    """is_added: import_file() has put it into sys.path. hidden: its modules while another folder's have their names."""

    def __init__(self, is_added):
        self.is_added, self.hidden = is_added, {}


def below(folder):
    """Modules that were imported because this folder is in the path, by name."""
    found = {}
    for name, module in list(sys.modules.items()):
        stem = folder.joinpath(*(RENAMED.get(part, part) for part in name.split(".")))
        file = getattr(module, "__file__", None)
        places = getattr(module, "__dict__", {}).get("__path__") or () if file is None else ()  # of a package without __init__.py
        if file in (f"{stem}.py", f"{stem}/__init__.py") or str(stem) in list(places):
            found[name] = module
    return found


def begin_job():
    """A server runs one job after another in one process. Each loads the user's modules anew: a job must not see their variables as another left them."""
    for folder, state in FOLDERS.items():
        for name in below(folder):
            del sys.modules[name]
        if state.is_added and str(folder) in sys.path:
            sys.path.remove(str(folder))
    FOLDERS.clear()
    RENAMED.clear()
    importlib.invalidate_caches()


def forget_failed(folder, before):
    """A file that raised while it was loaded leaves a module of half its names, and the modules that it had imported by then. The next load
    must begin anew: a server's next job, after the user has corrected the file."""
    for name in below(folder):
        if name in before:
            sys.modules[name] = before[name]
        else:
            sys.modules.pop(name, None)
    importlib.invalidate_caches()


def package_depth(file):
    """How many folders above the file belong to its package: as many as its relative imports climb, and those with __init__.py."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (SyntaxError, ValueError, RecursionError):  # raised again by the load
        nodes = []
    outermost = len(file.parents) - 1
    depth = min(max((node.level for node in nodes if isinstance(node, ast.ImportFrom)), default=0), outermost)
    while depth < outermost and (file.parents[depth] / "__init__.py").is_file():
        depth += 1
    return depth


def provides(folder, name):
    """Whether `import name` would find something of this folder's."""
    top = name.partition(".")[0]
    top = folder / RENAMED.get(top, top)
    return top.with_name(f"{top.name}.py").is_file() or any(top.glob("*.py"))


def take_turn(folders):
    """Modules of other folders give way to those of the same names in these folders."""
    for other, state in FOLDERS.items():
        if other in folders:
            continue
        for name in below(other):
            if any(provides(folder, name) for folder in folders):
                state.hidden[name] = sys.modules.pop(name)
    for folder in folders:
        sys.modules.update(FOLDERS[folder].hidden)
        FOLDERS[folder].hidden.clear()


def add_folder(folder, position):
    is_added = str(folder) not in sys.path
    if is_added:
        sys.path.insert(position, str(folder))
    FOLDERS.setdefault(folder, Folder(is_added))


@contextlib.contextmanager
def searched_first(folder):
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        if str(folder) in sys.path:  # else the user's code changed the list
            sys.path.remove(str(folder))


def is_from(module, path, folder):
    """Whether the module is that of a file, or of a package's folder."""
    file = getattr(module, "__file__", None)
    if file is None:
        return folder is not None and str(folder) in getattr(module, "__path__", ())
    return pathlib.Path(file).resolve() == path


def name_of(part, path, folder, package):
    """A module's name: that of its file, unless another module has it or it contains a dot."""
    name = package + part.replace(".", "_")
    while name in sys.modules and not is_from(sys.modules[name], path, folder):
        name += "_"
    last = name.rpartition(".")[2]
    if last != part:
        RENAMED[last] = part
    return name


def execute(name, path, folder):
    """The module of a file, or of a package's folder, which is executed if it is new."""
    if name in sys.modules:
        return sys.modules[name]
    search = None if folder is None else [str(folder)]
    if path.is_file():
        spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=search)
    else:
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = search
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    package, _, last = name.rpartition(".")
    if package:
        setattr(sys.modules[package], last, module)
    return sys.modules.get(name, module)


def import_file(file):
    """The module of a file. `python -m` from the folder that contains its package would import the same. The file's own folder is importable too,
    in a package after all others."""
    depth = package_depth(file)
    root = file.parents[depth]
    add_folder(root, 0)
    add_folder(file.parent, len(sys.path))
    take_turn({root, file.parent})
    levels = [(folder.name, folder / "__init__.py", folder) for folder in reversed(list(file.parents)[:depth])]
    if file.name != "__init__.py":
        levels.append((file.stem, file, None))
    before = dict(sys.modules)
    module, name = None, ""
    try:
        with searched_first(root):
            for level in levels:
                name = name_of(*level, f"{name}." if name else "")
                module = execute(name, level[1], level[2])
    except BaseException:
        forget_failed(root, before)
        raise
    return module
