"""What Lockstep's workers do in Python: load a user's network, data set and callbacks, call them, describe what they raise.

C++ calls the functions below by name (python/interpreter.h); users import nothing from here. Processes that read samples
(`num_workers`) import it too.
"""
from .callbacks import call_callback, kpi_sums, kpi_values, make_callback, process, save_sample
from .chains import chain_of
from .datasets import digest, make_dataset, read_samples
from .exports import export_program, read_pretrained, save_pretrained
from .faults import describe_fault, flush
from .models import (begin_forward, buffers_of, forward, frozen_parameters_of, make_model, move_buffers, own_loss, parameters_of, set_training,
                     num_unused_targets, unlike_parameters)
from .quantization import freeze_norms, quantizable_layers, quantize_layers
from .user_modules import begin_job
from .workers import end_workers, read_samples_by_worker, start_workers

__all__ = ["begin_forward", "begin_job", "buffers_of", "call_callback", "chain_of", "describe_fault", "digest", "end_workers", "export_program",
           "flush", "forward", "freeze_norms", "frozen_parameters_of", "kpi_sums", "kpi_values", "make_callback", "make_dataset", "make_model",
           "move_buffers", "num_unused_targets", "own_loss", "parameters_of", "process", "quantizable_layers", "quantize_layers", "read_pretrained",
           "read_samples", "read_samples_by_worker", "save_pretrained", "save_sample", "set_training", "start_workers", "unlike_parameters"]
