"""The rows and panels of Lockstep's dashboard as data; make_dashboard turns them into Grafana's JSON.

In an expression OF stands for the matchers that every query carries: the variables job, run and instance. NODE stands for the hosts of the chosen
runs, for series of other exporters. An example:

    Panel("Speed", "Samples that all ranks train on in a second.", "samples/s",
          [("{{run}}", "sum by (run) (rate(lockstep_samples_total{OF}[RATE]))")])
"""
import dataclasses

OF = 'job=~"$job", run=~"$run", instance=~"$instance"'
NODE = "$node"
RATE = "$__rate_interval"
# Seconds that each rank works on a step.
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
    stat("State", "What the run does now: initializing, restoring, training, validating, saving, draining, paused, finished or failed.", "short",
         "{{state}}", "lockstep_run_state{OF} == 1"),
    stat("Step", "Updates of the weights done, counted on over restarts.", "short", "{{run}}", "lockstep_step{OF}"),
    stat("Epoch", "Passes over the training data done.", "short", "{{run}}", "lockstep_epoch{OF}"),
    stat("Time left", "Epochs left, at the speed of the last minutes.", "s", "{{run}}",
         "(lockstep_epochs_planned{OF} - lockstep_epoch{OF}) / deriv(lockstep_epoch{OF}[RATE])"),
    stat("Age of the last save", "A restart loses no more than this.", "s", "{{run}}",
         "time() - lockstep_checkpoint_last_success_timestamp_seconds{OF}"),
    stat("Restarts", "Starts of a process in the last day, of the process that was started most often.", "short", "{{run}}",
         "max by (run) (changes(process_start_time_seconds{OF}[1d]))"),
    Panel("Loss", "Training loss, mean over ranks, and the loss of the last evaluation.", "short",
          [("{{run}} training", "lockstep_train_loss{OF}"), ("{{run}} validation", "lockstep_validation_loss{OF}")]),
    Panel("Accuracy", "Top-1 accuracy of the last evaluation.", "percentunit", [("{{run}}", "lockstep_validation_accuracy_ratio{OF}")]),
    Panel("Metrics of validations", "Values of eval.metrics in the last evaluation.", "short",
          [("{{run}} {{metric}}", "lockstep_validation_metric{OF}")]),
    Panel("KPIs of callbacks", "What they gave last, in training and in evaluations.", "short", [("{{run}} {{kpi}} {{mode}}", "lockstep_kpi{OF}")], width=12),
    Panel("Metrics of classes", "Values of single classes in the last evaluation (precision, recall), for at most 100 classes.", "short",
          [("{{metric}} {{class}}", "lockstep_validation_class_metric{OF}")], width=12),
]
SPEED = [
    Panel("Throughput", "Samples that all ranks train on in a second.", PER_SECOND["samples"],
          [("{{run}}", "sum by (run) (rate(lockstep_samples_total{OF}[RATE]))")]),
    Panel("Duration of a step", "Median, 95th percentile and mean over all ranks.", "s",
          [("half below", "histogram_quantile(0.5, sum by (le) (rate(lockstep_step_duration_seconds_bucket{OF}[RATE])))"),
           ("95 % below", "histogram_quantile(0.95, sum by (le) (rate(lockstep_step_duration_seconds_bucket{OF}[RATE])))"),
           ("mean", "sum(rate(lockstep_step_duration_seconds_sum{OF}[RATE])) / sum(rate(lockstep_step_duration_seconds_count{OF}[RATE]))")]),
    Panel("Where a step's time goes", "Share of each phase, of all ranks together.", "percentunit",
          [("{{phase}}", "sum by (phase) (rate(lockstep_step_phase_seconds_total{OF}[RATE]))"
            " / ignoring (phase) group_left () sum(rate(lockstep_step_phase_seconds_total{OF}[RATE]))")], stacked=True),
    Panel("All-reduce not hidden", "Share of the time that ranks wait for gradients of others, beside what backward hides.", "percentunit",
          [("waited for", "sum(rate(lockstep_allreduce_exposed_seconds_total{OF}[RATE])) / sum(rate(lockstep_step_duration_seconds_sum{OF}[RATE]))"),
           ("hidden", "sum(rate(lockstep_allreduce_overlapped_seconds_total{OF}[RATE])) / sum(rate(lockstep_step_duration_seconds_sum{OF}[RATE]))")], width=6),
    Panel("Duration of an all-reduce", "Of one bucket of gradients, over all ranks. On GPUs the time until it is queued.", "s",
          [("half below", "histogram_quantile(0.5, sum by (le) (rate(lockstep_allreduce_duration_seconds_bucket{OF}[RATE])))"),
           ("95 % below", "histogram_quantile(0.95, sum by (le) (rate(lockstep_allreduce_duration_seconds_bucket{OF}[RATE])))")], width=6),
    Panel("Bytes of gradients", "What is handed to all-reduce, and what packing and narrower types leave out.", PER_SECOND["bytes"],
          [("handed over", "sum(rate(lockstep_allreduce_bytes_total{OF}[RATE]))"),
           ("left out", "sum(rate(lockstep_allreduce_saved_bytes_total{OF}[RATE]))")], stacked=True, width=6),
    Panel("Bus bandwidth", "Bytes a rank must send at least, by the time inside all-reduce.", PER_SECOND["bytes"],
          [("{{rank}}", "rate(lockstep_allreduce_sent_bytes_total{OF}[RATE]) / rate(lockstep_allreduce_seconds_total{OF}[RATE])")], width=6),
]
RANKS = [
    Panel("Duration of steps by rank", "Mean duration of a step. Ranks wait for one another, so a slow one slows all.", "s",
          [("{{rank}} on {{node}}", "rate(lockstep_step_duration_seconds_sum{OF}[RATE]) / rate(lockstep_step_duration_seconds_count{OF}[RATE])")]),
    Panel("Steps of each rank", "Mean duration of the work on a step by rank and time, without what ranks wait for one another: the slow rank stands out.", "s",
          [("{{rank}}", WORK_OF_A_STEP)], kind="rankmap"),
    Panel("Stragglers", "Share of the steps on which a rank worked more than 30 % longer than the mean of the others.", "percentunit",
          [("{{rank}} on {{node}}", "rate(lockstep_straggler_steps_total{OF}[RATE]) / rate(lockstep_steps_total{OF}[RATE])")]),
    Panel("Waited for all-reduce by rank", "The rank that waits least is the slow one: the others wait for it.", "percentunit",
          [("{{rank}} on {{node}}", "rate(lockstep_allreduce_exposed_seconds_total{OF}[RATE])")]),
    Panel("Slowest beside fastest rank", "How much longer the slowest rank works on a step than the fastest, without what they wait for each other.", "s",
          [("{{run}}", f"max by (run) ({WORK_OF_A_STEP}) - min by (run) ({WORK_OF_A_STEP})")]),
    Panel("Steps by duration", "How many steps took how long, over all ranks.", "s",
          [("{{le}}", "sum by (le) (increase(lockstep_step_duration_seconds_bucket{OF}[RATE]))")], kind="heatmap"),
    Panel("Missing ranks", "Ranks of the world that Prometheus does not see, and those that did not answer the rank which shows them.", "short",
          [("{{run}}", "max by (run) (lockstep_world_ranks{OF}) - count by (run) (lockstep_rank_info{OF})"),
           ("{{run}} unanswered", "sum by (run) (lockstep_http_missing_ranks{OF})")]),
    Panel("Skipped updates", "Steps without an update for NaN or Inf in the gradients.", "short",
          [("{{rank}}", "increase(lockstep_nonfinite_steps_total{OF}[RATE])")]),
    Panel("Comparisons of ranks", "Share of the time spent comparing the ranks' whole state.", "percentunit",
          [("{{rank}}", "rate(lockstep_agreement_seconds_total{OF}[RATE])")]),
]
RECIPE = [
    Panel("Learning rate", "Of the last step, by parameter group.", "short", [("{{run}} {{group}}", "lockstep_learning_rate{OF}")], log_scale=True),
    Panel("Sparsity", "Pruned share of the prunable parameters, and what the schedule asks of each modifier.", "percentunit",
          [("{{run}}", "lockstep_sparsity_ratio{OF}"), ("{{modifier}} asks for", "lockstep_target_sparsity_ratio{OF}")]),
    Panel("Sparsity of layers", "Of single parameters, where log_types of a modifier or summary.per_layer asks for them.", "percentunit",
          [("{{param}}", "lockstep_layer_sparsity_ratio{OF}")]),
    Panel("Layers now", "The same as a table, the least pruned layer first.", "percentunit", [("{{param}}", "sort(lockstep_layer_sparsity_ratio{OF})")], kind="table", width=6),
    Panel("Modifiers at work", "Masks and rates that each modifier has set.", "short",
          [("{{modifier}}", "increase(lockstep_modifier_updates_total{OF}[RATE])")], width=6),
    Panel("Weight decay", "Of the last step, by parameter group.", "short", [("{{run}} {{group}}", "lockstep_weight_decay{OF}")], width=6),
    Panel("Length of the gradient", "Mean gradient before clipping, where optimizer.clip_norm is set, and the loss scale of fp16.", "short",
          [("{{run}} length", "lockstep_gradient_norm{OF}"), ("{{run}} scale", "lockstep_loss_scale{OF}")], log_scale=True, width=6),
]
CHECKPOINTS = [
    Panel("Duration of saves", "From start to commit, beside training.", "s",
          [("95 % below", "histogram_quantile(0.95, sum by (le) (rate(lockstep_checkpoint_save_duration_seconds_bucket{OF}[RATE])))"),
           ("mean", "sum(rate(lockstep_checkpoint_save_duration_seconds_sum{OF}[RATE]))"
            " / sum(rate(lockstep_checkpoint_save_duration_seconds_count{OF}[RATE]))")]),
    Panel("Training stood still for saves", "Share of the time, by rank.", "percentunit",
          [("{{rank}}", "rate(lockstep_checkpoint_stall_seconds_total{OF}[RATE])")]),
    Panel("Saves", "Attempted and failed, restores, and saves that restores passed over as damaged.", "short",
          [("attempted", "sum(increase(lockstep_checkpoint_saves_total{OF}[RATE]))"),
           ("failed", "sum(increase(lockstep_checkpoint_save_failures_total{OF}[RATE]))"),
           ("restored", "sum(increase(lockstep_checkpoint_restores_total{OF}[RATE]))"),
           ("damaged", "sum(increase(lockstep_checkpoint_damaged_saves_total{OF}[RATE]))")]),
    Panel("Bytes written", "To checkpoints, by all ranks.", PER_SECOND["bytes"],
          [("{{run}}", "sum by (run) (rate(lockstep_checkpoint_written_bytes_total{OF}[RATE]))")]),
    Panel("Free space", "In the folder of checkpoints.", "bytes", [("{{run}}", "lockstep_checkpoint_free_bytes{OF}")]),
    Panel("Models published", "Exports of the best or last model, and those that failed.", "short",
          [("published", "sum(increase(lockstep_exports_total{OF}[RATE]))"),
           ("failed", "sum(increase(lockstep_export_failures_total{OF}[RATE]))")]),
]
DATA = [
    Panel("Waited for data by rank", "Share of the time. More than a few percent: the loader is too slow.", "percentunit",
          [("{{rank}}", 'rate(lockstep_step_phase_seconds_total{OF, phase="data"}[RATE])')]),
    Panel("Samples by rank", "Trained on in a second.", PER_SECOND["samples"], [("{{rank}}", "rate(lockstep_samples_total{OF}[RATE])")]),
    Panel("Batches ready", "Read ahead and not yet taken, after each step. At 0 the step waits for the loader; absent where data.loader_threads is 0.", "short",
          [("{{rank}}", "lockstep_data_queue_batches{OF}")]),
    Panel("Records read", "From files, in a second, of all ranks; 0 where samples are made or kept in memory.", "ops",
          [("{{run}}", "sum by (run) (rate(lockstep_data_records_total{OF}[RATE]))")]),
    Panel("Bytes read", "Of these records as they lie in their files.", PER_SECOND["bytes"],
          [("{{run}}", "sum by (run) (rate(lockstep_data_read_bytes_total{OF}[RATE]))")]),
    Panel("Damaged samples", "Skipped because they could not be read (data.on_error: skip).", "short",
          [("{{rank}}", "increase(lockstep_skipped_samples_total{OF}[RATE])")]),
]
MEMORY = [
    Panel("Resident memory by rank", "A line that rises for hours is a leak.", "bytes", [("{{rank}} on {{node}}", "process_resident_memory_bytes{OF}")]),
    Panel("Processors in use by rank", "Cores that a process keeps busy.", "short", [("{{rank}}", "rate(process_cpu_seconds_total{OF}[RATE])")]),
    Panel("Open files by rank", "Beside what the process may open.", "short",
          [("{{rank}}", "process_open_fds{OF}"), ("{{rank}} may", "process_max_fds{OF}")], log_scale=True),
]
GPU_MEMORY = [
    Panel("Memory of GPUs", "In tensors now, and the most so far. What tensors may take is the limit. Absent on CPUs.", "bytes",
          [("{{rank}} now", "lockstep_gpu_memory_allocated_bytes{OF}"), ("{{rank}} most", "lockstep_gpu_memory_peak_bytes{OF}"),
           ("{{rank}} limit", "lockstep_gpu_memory_limit_bytes{OF}")]),
    Panel("Memory kept by the allocator", "Taken from the GPU, in tensors or kept for later ones.", "bytes", [("{{rank}}", "lockstep_gpu_memory_reserved_bytes{OF}")]),
    Panel("Allocations that failed", "As no memory of the GPU was left.", "short", [("{{rank}}", "increase(lockstep_gpu_ooms_total{OF}[RATE])")]),
]
SERVICE = [
    Panel("Requests", "Answered, by page and status code.", PER_SECOND["requests"],
          [("{{handler}} {{code}}", "sum by (handler, code) (rate(lockstep_http_requests_total{OF}[RATE]))")], width=6),
    Panel("Duration of requests", "From the header of a request to the end of its answer: /metrics and all others.", "s",
          [("{{handler}}, 95 % below", "histogram_quantile(0.95, sum by (le, handler) (rate(lockstep_http_request_duration_seconds_bucket{OF}[RATE])))")], width=6),
    Panel("Connections refused or cut", "No free place, too slow, a bad or large header, a large body.", "short",
          [("{{reason}}", "sum by (reason) (increase(lockstep_http_rejected_connections_total{OF}[RATE]))")], width=6),
    Panel("Log lines and signals", "Warnings and errors that were logged, and signals that came.", "short",
          [("{{level}}", 'sum by (level) (increase(lockstep_log_messages_total{OF, level=~"warning|error"}[RATE]))'),
           ("{{signal}}", "sum by (signal) (increase(lockstep_signals_total{OF}[RATE]))")], width=6),
]
# Of other exporters on the hosts of the chosen runs: NVIDIA's DCGM exporter and Prometheus' node exporter. They name hosts as Hostname and nodename.
OF_NODE = ' * on (instance) group_left (nodename) node_uname_info{nodename=~"NODE"}'
HARDWARE = [
    Panel("GPUs at work", "Share of the time that kernels run (DCGM exporter).", "percent",
          [("{{Hostname}} {{gpu}}", 'DCGM_FI_DEV_GPU_UTIL{Hostname=~"NODE"}')]),
    Panel("Temperature of GPUs", "DCGM exporter.", "celsius", [("{{Hostname}} {{gpu}}", 'DCGM_FI_DEV_GPU_TEMP{Hostname=~"NODE"}')]),
    Panel("Power of GPUs", "DCGM exporter.", "watt", [("{{Hostname}} {{gpu}}", 'DCGM_FI_DEV_POWER_USAGE{Hostname=~"NODE"}')]),
    Panel("Processors of hosts", "Cores at work (node exporter).", "short",
          [("{{nodename}}", 'sum by (instance) (rate(node_cpu_seconds_total{mode!~"idle|iowait"}[RATE]))' + OF_NODE)], width=6),
    Panel("Free memory of hosts", "What processes can still take (node exporter).", "bytes", [("{{nodename}}", "node_memory_MemAvailable_bytes" + OF_NODE)], width=6),
    Panel("Network of hosts", "Sent by each interface but the loopback (node exporter).", "Bps",
          [("{{nodename}} {{device}}", 'rate(node_network_transmit_bytes_total{device!="lo"}[RATE])' + OF_NODE)], width=6),
    Panel("Disks of hosts", "Share of the time that a disk is busy (node exporter).", "percentunit",
          [("{{nodename}} {{device}}", "rate(node_disk_io_time_seconds_total[RATE])" + OF_NODE)], width=6),
]
ROWS = [("Run", RUN), ("Speed", SPEED), ("Ranks", RANKS), ("Recipe", RECIPE), ("Checkpoints", CHECKPOINTS), ("Data", DATA), ("Memory", MEMORY + GPU_MEMORY),
        ("Service", SERVICE)]
COLLAPSED_ROWS = [("Hardware", HARDWARE)]

# (name, colour, expression, title of a mark)
ANNOTATIONS = [
    ("Masks updated", "purple", "sum by (run) (increase(lockstep_mask_updates_total{OF}[RATE])) > 0", "{{run}}: masks updated"),
    ("Saves", "green", "changes(lockstep_checkpoint_last_success_timestamp_seconds{OF}[RATE]) > 0", "{{run}}: checkpoint saved"),
]
