// What nearly every test reads first; tests still include what they use.
#pragma once

#include "pch.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
