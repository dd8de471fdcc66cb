"""forked_python.py IMPORTS [FOLDER...]: executes the imports, with these folders in sys.path, then runs programs in forks.

Each line of the input is a JSON list of a program and its arguments, each line of the output a list of exit code, stdout and stderr.
"""
import io
import json
import os
import runpy
import sys
import tempfile
import traceback


def run(arguments, outputs):
    """Runs the program in this process, which is a fork."""
    for number, file in zip((1, 2), outputs, strict=True):
        os.dup2(file.fileno(), number)
    sys.stdout, sys.stderr = (io.TextIOWrapper(os.fdopen(number, "wb", closefd=False), write_through=True) for number in (1, 2))
    sys.argv[:] = arguments
    code = 0
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    os._exit(code)


def in_fork(arguments):
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as faults:
        pid = os.fork()
        if pid == 0:
            run(arguments, (said, faults))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for file in (said, faults):
            file.seek(0)
        return code, said.read(), faults.read()


sys.path[:0] = sys.argv[2:]
exec(sys.argv[1])
for line in sys.stdin:
    print(json.dumps(in_fork(json.loads(line))), flush=True)
