// Calls all hooks in the order in which they were added; the recorder is the first.
#include "train/hook.h"

#include <algorithm>

namespace lockstep::train {

bool Hooks::read_tensors() const {
  return std::any_of(all_.begin(), all_.end(), [](const Hook* h) { return h->reads_tensors(); });
}

void Hooks::begin(coord::Mode mode, int64_t step, int64_t num_iterations) {
  for (Hook* hook : all_)
    hook->begin({.run = context_,
                 .mode = mode,
                 .step = step,
                 .num_iterations = num_iterations,
                 .summary_writer = summaries_.file});
}

summary::DefaultWriterOptions Hooks::summaries_at(int64_t summary_step) const {
  summary::DefaultWriterOptions summaries = summaries_;
  summaries.step = summary_step;
  return summaries;
}

void Hooks::before_step(int64_t step) {
  for (Hook* hook : all_) hook->before_step(step);
}

void Hooks::after_step(const IterationEnd& end) {
  for (Hook* hook : all_) hook->after_step(end);
}

void Hooks::after_evaluation(int64_t step, const EvalResult& result) {
  for (Hook* hook : all_) hook->after_evaluation(step, result);
}

void Hooks::end() {
  for (Hook* hook : all_) hook->end();
}

void Hooks::break_off() {
  for (Hook* hook : all_) hook->break_off();
}

void Hooks::complete(EvalResult* result) {
  for (Hook* hook : all_) hook->complete(result);
}

}  // namespace lockstep::train
