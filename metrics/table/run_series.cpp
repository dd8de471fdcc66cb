#include "metrics/table/series_table.h"

// Series of the run, exported by rank 0 only. docs/metrics.md is generated from these rows.
namespace lockstep::metrics {

namespace {

using enum SeriesInfo::Kind;
using enum SeriesInfo::Presence;

constexpr SeriesInfo kRunSeries[] = {
    {"lockstep_run_info", kGauge, "1", "run, model, launcher, config_sha", kAlways,
     "Facts of the run."},
    {"lockstep_run_state", kGauge, "0 or 1", "state", kAlways,
     "1 for one of initializing, restoring, training, validating, saving, draining, paused, "
     "finished, "
     "failed."},
    {"lockstep_run_start_timestamp_seconds", kGauge, "s since 1970", "", kAlways,
     "When this process began the run; a server of jobs itself began earlier."},
    {"lockstep_world_ranks", kGauge, "ranks", "", kAlways, "Ranks of the world."},
    {"lockstep_restarts", kGauge, "starts", "", kAlways,
     "Times the run was started before; absent if the launcher does not tell."},
    {"lockstep_step", kGauge, "steps", "", kAlways, "Global step."},
    {"lockstep_epoch", kGauge, "epochs", "", kAlways, "Epochs done, with fraction."},
    {"lockstep_epochs_planned", kGauge, "epochs", "", kAlways, "Epochs of the whole run."},
    {"lockstep_train_loss", kGauge, "-", "", kLate, "Training loss, mean over ranks, last logged."},
    {"lockstep_gradient_norm", kGauge, "-", "", kLate,
     "Length of the last update's mean gradient, before clipping; only with "
     "optimizer.clip_norm."},
    {"lockstep_loss_scale", kGauge, "-", "", kLate,
     "What the last step's losses were multiplied by; only with train.precision: fp16."},
    {"lockstep_learning_rate", kGauge, "-", "group", kLate,
     "Learning rate of the last step; group: weights, other."},
    {"lockstep_weight_decay", kGauge, "-", "group", kLate, "Weight decay of the last step."},
    {"lockstep_validation_loss", kGauge, "-", "", kLate, "Loss of the last validation."},
    {"lockstep_validation_accuracy_ratio", kGauge, "0 to 1", "", kLate,
     "Top-1 accuracy of the last validation."},
    {"lockstep_validation_metric", kGauge, "the metric's", "metric", kLate,
     "What a metric of eval.metrics gave in the last validation: top_5, perplexity."},
    {"lockstep_validation_class_metric", kGauge, "the metric's", "metric, class", kLate,
     "The same of one class (precision, recall), where there are at most 100; at most 200 series."},
    {"lockstep_kpi", kGauge, "the KPI's", "kpi, mode", kLate,
     "What a KPI of callbacks gave last; mode: train, eval; at most 50 series."},
    {"lockstep_sparsity_ratio", kGauge, "0 to 1", "", kAlways, "Pruned / prunable parameters."},
    {"lockstep_target_sparsity_ratio", kGauge, "0 to 1", "modifier", kLate,
     "Sparsity the schedule asks for now."},
    {"lockstep_parameters", kGauge, "parameters", "", kAlways, "Parameters of the model."},
    {"lockstep_prunable_parameters", kGauge, "parameters", "", kAlways,
     "Parameters that a recipe could prune: weights of linear layers and convolutions."},
    {"lockstep_trainable_parameters", kGauge, "parameters", "", kAlways,
     "Parameters that updates change."},
    {"lockstep_layer_sparsity_ratio", kGauge, "0 to 1", "param", kLate,
     "Pruned / all weights of one parameter, where log_types of a pruning modifier or "
     "summary.per_layer asks for it; the first 200 parameters."},
    {"lockstep_mask_updates_total", kCounter, "masks", "", kAlways, "Masks computed."},
    {"lockstep_revived_weights_total", kCounter, "weights", "", kAlways,
     "Pruned weights that were found not to be zero; must stay 0."},
    {"lockstep_quantized_layers", kGauge, "layers", "", kAlways,
     "Layers that train with fake quantization."},
    {"lockstep_pruned_parameters", kGauge, "parameters", "", kAlways,
     "Parameters that a mask holds at zero."},
    {"lockstep_modifier_updates_total", kCounter, "updates", "modifier", kAlways,
     "Masks or rates a modifier has set."},
    {"lockstep_validations_skipped_total", kCounter, "saves", "", kAlways,
     "Saves that were not validated: eval.eval_throttle_secs had not passed since the last "
     "validation."},
    {"lockstep_exports_total", kCounter, "models", "", kAlways,
     "Models that were to be published under saved_models."},
    {"lockstep_export_failures_total", kCounter, "models", "", kAlways,
     "Models that could not be published."},
    {"lockstep_checkpoint_saves_total", kCounter, "saves", "", kAlways, "Saves attempted."},
    {"lockstep_checkpoint_save_failures_total", kCounter, "saves", "", kAlways,
     "Saves that were not committed."},
    {"lockstep_checkpoint_save_duration_seconds", kHistogram, "s", "", kAlways,
     "Committed saves, from start to commit; 0.1 s to 30 min."},
    {"lockstep_checkpoint_interval_seconds", kGauge, "s", "", kLate,
     "Seconds expected from one commit to the next."},
    {"lockstep_checkpoint_interval_steps", kGauge, "steps", "", kLate,
     "Steps expected from one commit to the next, where saves go by steps."},
    {"lockstep_checkpoint_last_success_timestamp_seconds", kGauge, "s since 1970", "", kLate,
     "When the last save was committed."},
    {"lockstep_checkpoint_last_step", kGauge, "steps", "", kLate,
     "Step of the last committed save, or of the one restored."},
    {"lockstep_checkpoint_free_bytes", kGauge, "bytes", "", kLate,
     "Free space in the checkpoint folder."},
    {"lockstep_checkpoint_restores_total", kCounter, "restores", "", kAlways,
     "Restores from a save."},
    {"lockstep_checkpoint_damaged_saves_total", kCounter, "saves", "", kAlways,
     "Saves that were passed over as damaged when a run went on."},
    {"lockstep_checkpoint_restore_duration_seconds", kGauge, "s", "", kLate,
     "Duration of the last restore."},
    {"lockstep_tensorboard_write_errors_total", kCounter, "writes", "", kAlways,
     "Failed writes of the event files, and points left out as too much waited; all are lost."},
};

}  // namespace

std::span<const SeriesInfo> run_series() { return kRunSeries; }

}  // namespace lockstep::metrics
