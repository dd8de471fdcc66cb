#include "recal/recipe/recipe_template.h"

// recipe_template.yaml, linked into the program by recipe_template_file.S.
extern "C" const char lockstep_recipe_template_begin[], lockstep_recipe_template_end[];

namespace lockstep::recal {

// A test reads this text, and also the text with every comment enabled.
std::string recipe_template() {
  return {lockstep_recipe_template_begin, lockstep_recipe_template_end};
}

}  // namespace lockstep::recal
