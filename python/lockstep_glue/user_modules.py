"""Modules of a user's files: packages, and folders that use the same names."""
import ast
import importlib.machinery
import importlib.util
import pathlib
import sys

FOLDERS = {}  # from which files were loaded: their modules that are hidden while another folder's have their names
ADDED = []  # those that import_file() has put into sys.path
RENAMED = {}  # part of a module's name: the file or folder of another name


def places_of(module):
    """The file of a module. Of a package without __init__.py, where it would be."""
    file = getattr(module, "__file__", None)
    return [file] if file is not None else [f"{folder}/__init__.py" for folder in getattr(module, "__dict__", {}).get("__path__") or ()]


def below(folder):
    """Names of modules that were imported because this folder is in the path."""
    found = []
    for name, module in list(sys.modules.items()):
        stem = folder.joinpath(*(RENAMED.get(part, part) for part in name.split(".")))
        if not {f"{stem}.py", f"{stem}/__init__.py"}.isdisjoint(places_of(module)):
            found.append(name)
    return found


def begin_job():
    """A server runs one job after another in one process. Each loads the user's modules anew: a job must not see their variables as another left them."""
    for folder in FOLDERS:
        for name in below(folder):
            del sys.modules[name]
    for folder in ADDED:
        if folder in sys.path:
            sys.path.remove(folder)
    for one in (FOLDERS, ADDED, RENAMED):
        one.clear()
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
    for other in FOLDERS.keys() - folders:
        for name in below(other):
            if any(provides(folder, name) for folder in folders):
                FOLDERS[other][name] = sys.modules.pop(name)
    for folder in folders:
        sys.modules.update(FOLDERS[folder])
        FOLDERS[folder].clear()


def name_of(part, path, package):
    """A module's name: that of its file, unless another module has it or it contains a dot."""
    name = package + part.replace(".", "_")
    while name in sys.modules and path not in (pathlib.Path(place).resolve() for place in places_of(sys.modules[name])):
        name += "_"
    last = name.rpartition(".")[2]
    if last != part:
        RENAMED[last] = part
    return name


def execute(name, path):
    """The module of a file, which is executed if it is new. __init__.py may be absent."""
    if name in sys.modules:
        return sys.modules[name]
    if path.is_file():
        spec = importlib.util.spec_from_file_location(name, path)
    else:
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(path.parent)]
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
    for folder, position in ((root, 0), (file.parent, sys.maxsize)):
        FOLDERS.setdefault(folder, {})
        if str(folder) not in sys.path:
            sys.path.insert(position, str(folder))
            ADDED.append(str(folder))
    take_turn({root, file.parent})
    levels = [(folder.name, folder / "__init__.py") for folder in reversed(list(file.parents)[:depth])]
    if file.name != "__init__.py":
        levels.append((file.stem, file))
    before = dict(sys.modules)
    module, name = None, ""
    sys.path.insert(0, str(root))
    try:
        for part, path in levels:
            name = name_of(part, path, f"{name}." if name else "")
            module = execute(name, path)
    except BaseException:
        # A file that raised leaves modules of half their names. The next load begins anew: a server's next job, after the user has corrected it.
        for failed in below(root):
            del sys.modules[failed]
            if failed in before:
                sys.modules[failed] = before[failed]
        importlib.invalidate_caches()
        raise
    finally:
        if str(root) in sys.path:  # else the user's code changed the list
            sys.path.remove(str(root))
    return module
