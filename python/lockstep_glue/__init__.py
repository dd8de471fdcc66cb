"""What Lockstep's workers do in Python: load a user's network, data set and callbacks, call them, describe what they raise. C++ calls the functions
below by name (python/interpreter.h), processes that read samples (`num_workers`) import it too, users do not."""
from .callbacks import call_callback, kpi_sums, kpi_values, make_callback, process, save_sample
from .chains import chain_of
from .datasets import digest, make_dataset, read_samples
from .exports import export_program, read_pretrained, save_pretrained
from .faults import describe_fault, flush
from .models import (begin_forward, buffers_of, forward, freeze_norms, frozen_parameters_of, make_model, move_buffers, num_unused_targets, own_loss,
                     parameters_of, quantizable_layers, quantize_layers, set_training, unlike_parameters)
from .user_modules import begin_job
from .workers import end_workers, read_samples_by_worker, start_workers
