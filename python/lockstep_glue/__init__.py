"""What Lockstep's workers do in Python: load a user's network, data set and callbacks, call them, describe what they raise.

C++ calls the functions below by name (python/interpreter.h); users import nothing from here. Processes that read samples
(`num_workers`) import it too.
"""
from .callbacks import call_callback, end_iteration, make_callback
from .datasets import digest, make_dataset, read_samples
from .exports import export_program, read_pretrained, save_pretrained
from .faults import begin_job, describe_fault, flush
from .models import (begin_forward, buffers_of, forward, frozen_parameters_of, make_model, move_buffers, own_loss, parameters_of, set_training,
                     unlike_parameters)
from .workers import end_workers, read_samples_by_worker, start_workers

__all__ = ["begin_forward", "begin_job", "buffers_of", "call_callback", "describe_fault", "digest", "end_iteration", "end_workers", "export_program",
           "flush", "forward", "frozen_parameters_of", "make_callback", "make_dataset", "make_model", "move_buffers", "own_loss", "parameters_of",
           "read_pretrained", "read_samples", "read_samples_by_worker", "save_pretrained", "set_training", "start_workers", "unlike_parameters"]
