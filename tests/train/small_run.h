#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/dataset_table.h"
#include "dist/communicator.h"
#include "dist/reducer/bucket_reduction.h"
#include "dist/reducer/gradient_reducer.h"
#include "dist/replica_check.h"
#include "model/networks/model_table.h"
#include "model/networks/small_networks.h"
#include "recal/recipe/recipe_reader.h"
#include "recal/schedule/param_choices.h"
#include "train/step/buffers.h"
#include "train/step/step_modes.h"
#include "train/step/trainer.h"

namespace lockstep::tests {

struct SmallRunOptions {
  model::ModelOptions model = model::mlp({.layers = {3, 5, 4}, .activation = "tanh"});
  std::vector<int64_t> shape = {3};
  int64_t num_classes = 4, num_samples = 10, global_batch = 4;
  int64_t tokens = 0;                            ///< vocabulary; 0: inputs are numbers
  bool keeps_tensors = false;                    ///< in `tensors`
  bool elastic = false;                          ///< run.deterministic: elastic
  bool shares_weights = false;                   ///< sync.share_weights: on
  std::shared_ptr<DeviceGraph> graph = nullptr;  ///< of train.cuda_graphs
  const data::Dataset* data = nullptr;           ///< instead of the random numbers; of their kind
  data::LoaderOptions loader;
  StopRequest* stop = nullptr;  ///< ends waits for data, at once
  bool distills = false;        ///< by a teacher of the same kind, with other weights
  bool teacher_is_copy = false;
  std::vector<train::StepPart*> more_parts;
  int64_t audit_every = 0;  ///< run.audit_every
  train::TrainOptions train;
  optim::OptimizerOptions optimizer{.type = "sgd", .learning_rate = 0.1};
  dist::SyncOptions sync{.bucket_bytes = 1024, .overlap = "true"};
  std::string recipe = "version: 1.0.0\nmodifiers: []\n";
};

inline std::string bits_of(const StateList& state) {
  std::string bits;
  for (const StateEntry& entry : state)
    if (entry.tensor.defined())
      bits.append(static_cast<const char*>(entry.tensor.const_data_ptr()), entry.tensor.nbytes());
  return bits;
}

/// One rank's training of random numbers, put together as the daemon does, with gradients that
/// travel during backward in small buckets.
class SmallRun {
 public:
  /// gradients_: null: a communicator like `comm`.
  SmallRun(dist::Communicator& comm, const SmallRunOptions& options_,
           std::unique_ptr<dist::Communicator> gradients_ = nullptr)
      : options(options_),
        control(comm),
        gradients(gradients_ ? std::move(gradients_) : comm.split(0, comm.rank())),
        dataset({.shape = options.shape,
                 .classes = options.num_classes,
                 .samples = options.num_samples,
                 .seed = 1,
                 .tokens = options.tokens}),
        sampler({.num_samples = options.num_samples,
                 .global_batch_size = options.global_batch,
                 .seed = 2}),
        loader(options.data != nullptr ? *options.data : dataset, sampler, comm.rank(),
               comm.world_size(), options.loader),
        clock{.step = 0, .steps_per_epoch = sampler.steps_per_epoch()},
        model(with_matrices(options.optimizer,
                            options.model.make({.input_shape = options.shape,
                                                .num_classes = dataset.spec().num_classes,
                                                .seed = 17,
                                                .input_dtype = dataset.spec().input_dtype}))),
        loss(options.train.loss, options.train.loss_options,
             options.data != nullptr ? options.data->spec() : dataset.spec()),
        flat_params(model->params(),
                    train::plan_layout(model->params(),
                                       std::vector<bool>(model->params().size(), true), 4096),
                    at::kCPU),
        reducer(options.sync.sync_replicas ? *gradients : alone, flat_params.buffers(),
                model->params(), options.sync),
        optimizer(optim::make_optimizer(options.optimizer, flat_params.buffers(), model->params())),
        ema(options.optimizer.ema_decay, model->params()),
        loss_scale(options.train.loss_scale, options.train.precision == "fp16"),
        recipe(attached()),
        teacher(make_teacher()),
        mode(make_mode()),
        tensors(options.num_classes),
        trainer(parts(*model), options.train) {
    model->set_layer_hook(recipe.layer_hook());
    ema.begin();
    if (options.shares_weights) share();
  }

  train::StepReport step() { return trainer.step({}); }

  /// Parts of a trainer for this network.
  train::TrainerParts parts(model::Model& network) {
    return {.control = control,
            .loader = loader,
            .model = network,
            .flat_params = flat_params,
            .reducer = reducer,
            .optimizer = *optimizer,
            .optimizer_options = options.optimizer,
            .recipe = recipe,
            .loss = loss,
            .loss_scale = loss_scale,
            .ema = ema,
            .clock = clock,
            .mode = *mode,
            .total_steps = 100,
            .bucket_bytes = 4096,
            .tensors = options.keeps_tensors ? &tensors : nullptr,
            .teacher = teacher.get(),
            .teacher_is_copy = options.teacher_is_copy,
            .stop = options.stop,
            .data_patience_s = 0,
            .graph = options.graph,
            .more_parts = options.more_parts,
            .audit_every = options.audit_every,
            .place = "host " + std::to_string(control.rank())};
  }

  /// Parameters, moving statistics, averages, optimizers, loss scale. Collective where that is
  /// divided.
  StateList state() {
    StateList all;
    for (const Param& param : model->params())
      all.push_back({param.name, param.tensor.detach(), nullptr});
    for (const model::Buffer& buffer : model->buffers())
      all.push_back({buffer.name, buffer.tensor, nullptr});
    const StateList moments = optimizer->state();
    reducer.complete(optimizer->sharded_state());
    for (const StateList& part : {ema.state(), moments, loss_scale.state()})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  }

  /// Throws unless all ranks hold the same bits.
  void require_equal_ranks() {
    std::vector<dist::NamedTensor> named;
    for (const StateEntry& entry : state()) named.push_back({entry.key, entry.tensor});
    dist::require_equal_replicas(control, "the state", named);
  }

  const SmallRunOptions options;
  dist::Communicator& control;
  const std::unique_ptr<dist::Communicator> gradients;
  dist::SelfCommunicator alone;
  data::RandomDataset dataset;
  data::Sampler sampler;
  data::Loader loader;
  StepClock clock;
  const std::unique_ptr<model::Model> model;
  const train::Loss loss;
  optim::FlatParams flat_params;
  dist::GradientReducer reducer;
  const std::unique_ptr<optim::Optimizer> optimizer;
  optim::Ema ema;
  train::LossScale loss_scale;
  recal::ScheduledModifierManager recipe;
  const std::unique_ptr<train::Teacher> teacher;
  const std::unique_ptr<train::StepMode> mode;
  train::StepTensors tensors;
  train::Trainer trainer;

 private:
  std::unique_ptr<train::StepMode> make_mode() {
    if (options.elastic) return std::make_unique<train::Elastic>(control);
    if (options.sync.sync_replicas) return std::make_unique<train::Synchronous>(control);
    return std::make_unique<train::LocalSteps>(
        *gradients, options.sync,
        /*statistics_of_root=*/options.train.batch_norm == "broadcast");
  }

  static std::unique_ptr<model::Model> with_matrices(const optim::OptimizerOptions& options,
                                                     std::unique_ptr<model::Model> network) {
    if (options.type == "muon") recal::choose_matrices(options.muon_params, &network->params());
    optim::choose_blocks(options, &network->params());
    return network;
  }

  std::unique_ptr<train::Teacher> make_teacher() const {
    if (!options.distills) return nullptr;
    return std::make_unique<train::Teacher>(
        options.model.make({.input_shape = options.shape,
                            .num_classes = dataset.spec().num_classes,
                            .seed = 99,
                            .input_dtype = dataset.spec().input_dtype}),
        at::kCPU);
  }

  void share() {
    dist::SharedMemory memory = gradients->share_memory(
        dist::SharedFlatMemory::bytes_for(model->params(), gradients->world_size()));
    flat_params.move_to(
        std::make_unique<dist::SharedFlatMemory>(*gradients, std::move(memory), model->params()));
    recipe.share_weights();
  }

  recal::ScheduledModifierManager attached() const {
    Diagnostics faults;
    recal::ScheduledModifierManager manager(
        recal::parse_recipe("test.yaml", options.recipe, &faults));
    faults.throw_if_any("test");
    manager.attach(
        model->params(),
        {.steps_per_epoch = clock.steps_per_epoch,
         .base_learning_rate = options.optimizer.learning_rate,
         .layers = model->layers(),
         .teacher = options.distills ? recal::TeacherChoice::kGiven : recal::TeacherChoice::kNone,
         .rank = control.rank(),
         .world_size = control.world_size()},
        &faults);
    faults.throw_if_any("test");
    return manager;
  }
};

}  // namespace lockstep::tests
