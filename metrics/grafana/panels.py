"""The rows and panels of Lockstep's dashboard as data; make_dashboard turns them into Grafana's JSON.

OF in an expression is replaced by the matchers of every query: the variables job, run and instance. NODE is replaced by the hosts of the selected
runs, for series of other exporters. An example:

    Panel("Speed", "Training samples per second of all ranks.", "samples/s",
          [("{{run}}", "sum by (run) (rate(lockstep_samples_total{OF}[RATE]))")])
"""
import dataclasses

OF = 'job=~"$job", run=~"$run", instance=~"$instance"'
NODE = "$node"
RATE = "$__rate_interval"
# Seconds of work of each rank in a step.
WORK_OF_A_STEP = ('sum by (run, instance, rank) (rate(lockstep_step_phase_seconds_total{OF, phase!="allreduce"}[RATE]))'
                  " / sum by (run, instance, rank) (rate(lockstep_steps_total{OF}[RATE]))")
PER_SECOND = {"samples": "samples/s", "bytes": "Bps", "requests": "reqps"}


@dataclasses.dataclass
class Panel:
    title: str
    description: str
    unit: str  # of Grafana: "s", "bytes", "percentunit" (0 to 1), "short"
    queries: list  # (legend, expression)
    kind: str = "timeseries"  # or stat, table, heatmap (of buckets), rankmap (a line of colours for each series)
    width: int = 8  # of 24
    stacked: bool = False
    log_scale: bool = False

    def expressions(self):
        return [(legend, expression.replace("OF", OF).replace("NODE", NODE).replace("RATE", RATE)) for legend, expression in self.queries]


def stat(title, description, unit, legend, expression):
    return Panel(title, description, unit, [(legend, expression)], kind="stat", width=4)


RUN = [
    stat("State", "Current state of the run: initializing, restoring, training, validating, saving, draining, paused, finished or failed.", "short",
         "{{state}}", "lockstep_run_state{OF} == 1"),
    stat("Step", "Completed weight updates; continues over restarts.", "short", "{{run}}", "lockstep_step{OF}"),
    stat("Epoch", "Completed passes over the training data.", "short", "{{run}}", "lockstep_epoch{OF}"),
    stat("Time left", "Time for the remaining epochs at the speed of the last minutes.", "s", "{{run}}",
         "(lockstep_epochs_planned{OF} - lockstep_epoch{OF}) / deriv(lockstep_epoch{OF}[RATE])"),
    stat("Age of the last checkpoint", "Training time that a restart would lose at most.", "s", "{{run}}",
         "time() - lockstep_checkpoint_last_success_timestamp_seconds{OF}"),
    stat("Restarts", "Starts in the last day, of the process with the most starts.", "short", "{{run}}",
         "max by (run) (changes(process_start_time_seconds{OF}[1d]))"),
    Panel("Loss", "Training loss (mean over ranks) and loss of the last evaluation.", "short",
          [("{{run}} training", "lockstep_train_loss{OF}"), ("{{run}} validation", "lockstep_validation_loss{OF}")]),
    Panel("Accuracy", "Top-1 accuracy of the last evaluation.", "percentunit", [("{{run}}", "lockstep_validation_accuracy_ratio{OF}")]),
    Panel("Evaluation metrics", "Values of eval.metrics in the last evaluation.", "short",
          [("{{run}} {{metric}}", "lockstep_validation_metric{OF}")]),
    Panel("Callback KPIs", "Last values of the callbacks, in training and in evaluations.", "short", [("{{run}} {{kpi}} {{mode}}", "lockstep_kpi{OF}")], width=12),
    Panel("Per-class metrics", "Values of each class in the last evaluation (precision, recall), for at most 100 classes.", "short",
          [("{{metric}} {{class}}", "lockstep_validation_class_metric{OF}")], width=12),
]
GOODPUT = [
    stat("Goodput", "Productive share of the run's time over all its starts, without its queue.", "percentunit", "{{run}}", "lockstep_goodput_ratio{OF}"),
    Panel("Lost time", "Share of the time that each cause takes from training.", "percentunit",
          [("{{cause}}", "sum by (cause) (rate(lockstep_lost_seconds_total{OF}[RATE]))")], stacked=True, width=20),
]
SPEED = [
    Panel("Throughput", "Training samples per second of all ranks.", PER_SECOND["samples"],
          [("{{run}}", "sum by (run) (rate(lockstep_samples_total{OF}[RATE]))")]),
    Panel("Step duration", "Median, 95th percentile and mean over all ranks.", "s",
          [("median", "histogram_quantile(0.5, sum by (le) (rate(lockstep_step_duration_seconds_bucket{OF}[RATE])))"),
           ("p95", "histogram_quantile(0.95, sum by (le) (rate(lockstep_step_duration_seconds_bucket{OF}[RATE])))"),
           ("mean", "sum(rate(lockstep_step_duration_seconds_sum{OF}[RATE])) / sum(rate(lockstep_step_duration_seconds_count{OF}[RATE]))")]),
    Panel("Step time by phase", "Share of each phase, over all ranks.", "percentunit",
          [("{{phase}}", "sum by (phase) (rate(lockstep_step_phase_seconds_total{OF}[RATE]))"
            " / ignoring (phase) group_left () sum(rate(lockstep_step_phase_seconds_total{OF}[RATE]))")], stacked=True),
    Panel("Exposed all-reduce", "Share of step time that ranks wait in all-reduce, and the share of all-reduce that overlaps with backward.", "percentunit",
          [("exposed", "sum(rate(lockstep_allreduce_exposed_seconds_total{OF}[RATE])) / sum(rate(lockstep_step_duration_seconds_sum{OF}[RATE]))"),
           ("overlapped", "sum(rate(lockstep_allreduce_overlapped_seconds_total{OF}[RATE])) / sum(rate(lockstep_step_duration_seconds_sum{OF}[RATE]))")], width=6),
    Panel("All-reduce duration", "Duration for one gradient bucket, over all ranks. On GPUs the time until it is enqueued.", "s",
          [("median", "histogram_quantile(0.5, sum by (le) (rate(lockstep_allreduce_duration_seconds_bucket{OF}[RATE])))"),
           ("p95", "histogram_quantile(0.95, sum by (le) (rate(lockstep_allreduce_duration_seconds_bucket{OF}[RATE])))")], width=6),
    Panel("Gradient bytes", "Bytes passed to all-reduce, and bytes saved by packing and by narrower types.", PER_SECOND["bytes"],
          [("passed", "sum(rate(lockstep_allreduce_bytes_total{OF}[RATE]))"),
           ("saved", "sum(rate(lockstep_allreduce_saved_bytes_total{OF}[RATE]))")], stacked=True, width=6),
    Panel("Bus bandwidth", "Minimum bytes that a rank must send, divided by the time in all-reduce.", PER_SECOND["bytes"],
          [("{{rank}}", "rate(lockstep_allreduce_sent_bytes_total{OF}[RATE]) / rate(lockstep_allreduce_seconds_total{OF}[RATE])")], width=6),
]
RANKS = [
    Panel("Step duration by rank", "Mean step duration. Ranks wait for each other, so one slow rank slows all.", "s",
          [("{{rank}} on {{node}}", "rate(lockstep_step_duration_seconds_sum{OF}[RATE]) / rate(lockstep_step_duration_seconds_count{OF}[RATE])")]),
    Panel("Work per step by rank", "Mean work time per step by rank over time, without waiting for other ranks: a slow rank is visible.", "s",
          [("{{rank}}", WORK_OF_A_STEP)], kind="rankmap"),
    Panel("Stragglers", "Share of steps in which a rank worked more than 30 % longer than the mean of the others.", "percentunit",
          [("{{rank}} on {{node}}", "rate(lockstep_straggler_steps_total{OF}[RATE]) / rate(lockstep_steps_total{OF}[RATE])")]),
    Panel("All-reduce wait by rank", "Share of the time. The rank with the lowest value is the slow one: the others wait for it.", "percentunit",
          [("{{rank}} on {{node}}", "rate(lockstep_allreduce_exposed_seconds_total{OF}[RATE])")]),
    Panel("Step time skew", "Difference in work time per step between the slowest and the fastest rank, without waiting.", "s",
          [("{{run}}", f"max by (run) ({WORK_OF_A_STEP}) - min by (run) ({WORK_OF_A_STEP})")]),
    Panel("Step duration histogram", "Number of steps by duration, over all ranks.", "s",
          [("{{le}}", "sum by (le) (increase(lockstep_step_duration_seconds_bucket{OF}[RATE]))")], kind="heatmap"),
    Panel("Missing ranks", "Ranks that Prometheus does not scrape, and ranks that did not answer the rank that collects their pages.", "short",
          [("{{run}}", "max by (run) (lockstep_world_ranks{OF}) - count by (run) (lockstep_rank_info{OF})"),
           ("{{run}} unanswered", "sum by (run) (lockstep_http_missing_ranks{OF})")]),
    Panel("Skipped updates", "Steps without an update because of NaN or Inf in the gradients.", "short",
          [("{{rank}}", "increase(lockstep_nonfinite_steps_total{OF}[RATE])")]),
    Panel("Replica checks", "Share of the time spent on comparing the whole state of the ranks.", "percentunit",
          [("{{rank}}", "rate(lockstep_agreement_seconds_total{OF}[RATE])")]),
]
RECIPE = [
    Panel("Learning rate", "Learning rate of the last step, by parameter group.", "short", [("{{run}} {{group}}", "lockstep_learning_rate{OF}")], log_scale=True),
    Panel("Sparsity", "Pruned share of the prunable parameters, and the scheduled target of each modifier.", "percentunit",
          [("{{run}}", "lockstep_sparsity_ratio{OF}"), ("{{modifier}} target", "lockstep_target_sparsity_ratio{OF}")]),
    Panel("Layer sparsity", "Pruned share of each parameter; requires log_types of a modifier or summary.per_layer.", "percentunit",
          [("{{param}}", "lockstep_layer_sparsity_ratio{OF}")]),
    Panel("Layer sparsity table", "Current pruned share of each parameter, the lowest first.", "percentunit", [("{{param}}", "sort(lockstep_layer_sparsity_ratio{OF})")], kind="table", width=6),
    Panel("Modifier updates", "Masks and rates set by each modifier.", "short",
          [("{{modifier}}", "increase(lockstep_modifier_updates_total{OF}[RATE])")], width=6),
    Panel("Weight decay", "Weight decay of the last step, by parameter group.", "short", [("{{run}} {{group}}", "lockstep_weight_decay{OF}")], width=6),
    Panel("Gradient norm", "Norm of the mean gradient before clipping (with optimizer.clip_norm), and the loss scale of fp16.", "short",
          [("{{run}} norm", "lockstep_gradient_norm{OF}"), ("{{run}} scale", "lockstep_loss_scale{OF}")], log_scale=True, width=6),
]
CHECKPOINTS = [
    Panel("Save duration", "Time from start to commit, concurrent with training.", "s",
          [("p95", "histogram_quantile(0.95, sum by (le) (rate(lockstep_checkpoint_save_duration_seconds_bucket{OF}[RATE])))"),
           ("mean", "sum(rate(lockstep_checkpoint_save_duration_seconds_sum{OF}[RATE]))"
            " / sum(rate(lockstep_checkpoint_save_duration_seconds_count{OF}[RATE]))")]),
    Panel("Training stall by saves", "Share of the time that training waits for saves, by rank.", "percentunit",
          [("{{rank}}", "rate(lockstep_checkpoint_stall_seconds_total{OF}[RATE])")]),
    Panel("Saves and restores", "Attempted and failed saves, restores, and checkpoints that restores skipped as damaged.", "short",
          [("attempted", "sum(increase(lockstep_checkpoint_saves_total{OF}[RATE]))"),
           ("failed", "sum(increase(lockstep_checkpoint_save_failures_total{OF}[RATE]))"),
           ("restored", "sum(increase(lockstep_checkpoint_restores_total{OF}[RATE]))"),
           ("damaged", "sum(increase(lockstep_checkpoint_damaged_saves_total{OF}[RATE]))")]),
    Panel("Checkpoint bytes written", "Bytes written to checkpoints by all ranks.", PER_SECOND["bytes"],
          [("{{run}}", "sum by (run) (rate(lockstep_checkpoint_written_bytes_total{OF}[RATE]))")]),
    Panel("Free space", "Free space in the checkpoint folder.", "bytes", [("{{run}}", "lockstep_checkpoint_free_bytes{OF}")]),
    Panel("Published models", "Exports of the best or last model, and failed exports.", "short",
          [("published", "sum(increase(lockstep_exports_total{OF}[RATE]))"),
           ("failed", "sum(increase(lockstep_export_failures_total{OF}[RATE]))")]),
]
DATA = [
    Panel("Data wait by rank", "Share of the time. Above a few percent the loader is too slow.", "percentunit",
          [("{{rank}}", 'rate(lockstep_step_phase_seconds_total{OF, phase="data"}[RATE])')]),
    Panel("Samples by rank", "Training samples per second.", PER_SECOND["samples"], [("{{rank}}", "rate(lockstep_samples_total{OF}[RATE])")]),
    Panel("Prefetched batches", "Batches ready after each step. At 0 the step waits for the loader; absent with data.loader_threads: 0.", "short",
          [("{{rank}}", "lockstep_data_queue_batches{OF}")]),
    Panel("Records read", "Records read from files per second, over all ranks; 0 for generated or cached samples.", "ops",
          [("{{run}}", "sum by (run) (rate(lockstep_data_records_total{OF}[RATE]))")]),
    Panel("Record bytes read", "Size of these records in their files, per second.", PER_SECOND["bytes"],
          [("{{run}}", "sum by (run) (rate(lockstep_data_read_bytes_total{OF}[RATE]))")]),
    Panel("Damaged samples", "Samples skipped because they could not be read (data.on_error: skip).", "short",
          [("{{rank}}", "increase(lockstep_skipped_samples_total{OF}[RATE])")]),
]
MEMORY = [
    Panel("Resident memory by rank", "Resident memory of each process. A line that rises for hours is a leak.", "bytes", [("{{rank}} on {{node}}", "process_resident_memory_bytes{OF}")]),
    Panel("CPU cores in use by rank", "Number of busy cores of each process.", "short", [("{{rank}}", "rate(process_cpu_seconds_total{OF}[RATE])")]),
    Panel("Open files by rank", "Open files of each process, and its limit.", "short",
          [("{{rank}}", "process_open_fds{OF}"), ("{{rank}} limit", "process_max_fds{OF}")], log_scale=True),
]
GPU_MEMORY = [
    Panel("GPU memory", "Memory allocated by tensors, its peak, and the limit. Absent on CPUs.", "bytes",
          [("{{rank}} allocated", "lockstep_gpu_memory_allocated_bytes{OF}"), ("{{rank}} peak", "lockstep_gpu_memory_peak_bytes{OF}"),
           ("{{rank}} limit", "lockstep_gpu_memory_limit_bytes{OF}")]),
    Panel("GPU memory reserved", "Memory that the allocator reserved on the GPU, for current and later tensors.", "bytes", [("{{rank}}", "lockstep_gpu_memory_reserved_bytes{OF}")]),
    Panel("Failed GPU allocations", "Allocations that failed because the GPU was out of memory.", "short", [("{{rank}}", "increase(lockstep_gpu_ooms_total{OF}[RATE])")]),
]
SERVICE = [
    Panel("Requests", "Answered requests by page and status code.", PER_SECOND["requests"],
          [("{{handler}} {{code}}", "sum by (handler, code) (rate(lockstep_http_requests_total{OF}[RATE]))")], width=6),
    Panel("Request duration", "Time from the request header to the end of the answer: /metrics and all other pages.", "s",
          [("{{handler}} p95", "histogram_quantile(0.95, sum by (le, handler) (rate(lockstep_http_request_duration_seconds_bucket{OF}[RATE])))")], width=6),
    Panel("Rejected connections", "Connections over the limit or too slow, with a bad or large header, or with a large body.", "short",
          [("{{reason}}", "sum by (reason) (increase(lockstep_http_rejected_connections_total{OF}[RATE]))")], width=6),
    Panel("Log lines and signals", "Logged warnings and errors, and received signals.", "short",
          [("{{level}}", 'sum by (level) (increase(lockstep_log_messages_total{OF, level=~"warning|error"}[RATE]))'),
           ("{{signal}}", "sum by (signal) (increase(lockstep_signals_total{OF}[RATE]))")], width=6),
]
# Series of other exporters on the hosts of the selected runs: NVIDIA's DCGM exporter and Prometheus' node exporter. They name hosts as Hostname and nodename.
OF_NODE = ' * on (instance) group_left (nodename) node_uname_info{nodename=~"NODE"}'
HARDWARE = [
    Panel("GPU utilization", "Share of the time in which kernels run (DCGM exporter).", "percent",
          [("{{Hostname}} {{gpu}}", 'DCGM_FI_DEV_GPU_UTIL{Hostname=~"NODE"}')]),
    Panel("GPU temperature", "Temperature of each GPU (DCGM exporter).", "celsius", [("{{Hostname}} {{gpu}}", 'DCGM_FI_DEV_GPU_TEMP{Hostname=~"NODE"}')]),
    Panel("GPU power", "Power usage of each GPU (DCGM exporter).", "watt", [("{{Hostname}} {{gpu}}", 'DCGM_FI_DEV_POWER_USAGE{Hostname=~"NODE"}')]),
    Panel("Host CPU cores in use", "Number of busy cores of each host (node exporter).", "short",
          [("{{nodename}}", 'sum by (instance) (rate(node_cpu_seconds_total{mode!~"idle|iowait"}[RATE]))' + OF_NODE)], width=6),
    Panel("Host memory available", "Memory available to processes (node exporter).", "bytes", [("{{nodename}}", "node_memory_MemAvailable_bytes" + OF_NODE)], width=6),
    Panel("Host network sent", "Bytes sent by each interface except loopback (node exporter).", "Bps",
          [("{{nodename}} {{device}}", 'rate(node_network_transmit_bytes_total{device!="lo"}[RATE])' + OF_NODE)], width=6),
    Panel("Host disk utilization", "Share of the time in which a disk is busy (node exporter).", "percentunit",
          [("{{nodename}} {{device}}", "rate(node_disk_io_time_seconds_total[RATE])" + OF_NODE)], width=6),
]
ROWS = [("Run", RUN), ("Goodput", GOODPUT), ("Speed", SPEED), ("Ranks", RANKS), ("Recipe", RECIPE), ("Checkpoints", CHECKPOINTS), ("Data", DATA), ("Memory", MEMORY + GPU_MEMORY),
        ("Service", SERVICE)]
COLLAPSED_ROWS = [("Hardware", HARDWARE)]

# (name, colour, expression, title of a mark)
ANNOTATIONS = [
    ("Masks updated", "purple", "sum by (run) (increase(lockstep_mask_updates_total{OF}[RATE])) > 0", "{{run}}: masks updated"),
    ("Checkpoints", "green", "changes(lockstep_checkpoint_last_success_timestamp_seconds{OF}[RATE]) > 0", "{{run}}: checkpoint saved"),
]
