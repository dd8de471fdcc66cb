"""Programs in TensorFlow's Python, whose start takes seconds: one process for all of a test file."""
import json
import subprocess

from harness import SOURCE

PYTHON = SOURCE / ".venv-test" / "bin" / "python"
# Each line of the input is a program and its arguments; each of the output is what it printed, and why it failed.
SERVER = """
import contextlib, io, json, sys, traceback
import tensorflow
for line in sys.stdin:
    program, *sys.argv[1:] = json.loads(line)
    printed, fault = io.StringIO(), ""
    try:
        with contextlib.redirect_stdout(printed):
            exec(program, {})
    except BaseException:
        fault = traceback.format_exc()
    print(json.dumps([printed.getvalue(), fault]), flush=True)
"""


class InTensorFlow:
    """Mixin of a TestCase: run_tensorflow()."""
    server = None

    @classmethod
    def tearDownClass(cls):
        if cls.server is not None:
            cls.server.communicate()  # it ends with its input

    def run_tensorflow(self, program, *arguments):
        """Output of the program; fails the test if it throws."""
        cls = type(self)
        if cls.server is None:
            cls.server = subprocess.Popen([PYTHON, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        cls.server.stdin.write(json.dumps([program, *map(str, arguments)]) + "\n")
        cls.server.stdin.flush()
        answer = cls.server.stdout.readline()
        self.assertTrue(answer, "TensorFlow's process ended")
        printed, fault = json.loads(answer)
        self.assertEqual(fault, "")
        return printed
