"""A rank of user_loop.train: the request as JSON, the backend, and the signal that rank 1 gives itself at step 2, or 0. Prints the result as JSON."""
import datetime
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import user_loop
from user_loop import distributed

import lockstep  # noqa: F401

request, backend, signal_number = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])


def fail(_case, step, _model, _network):
    if signal_number and step == 2 and distributed.get_rank() == 1:
        os.kill(os.getpid(), signal_number)


user_loop.make_mistake = fail
distributed.init_process_group(backend, timeout=datetime.timedelta(seconds=20))
print("result", json.dumps(user_loop.train(request)), flush=True)
distributed.destroy_process_group()
