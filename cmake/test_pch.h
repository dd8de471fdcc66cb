// Headers that nearly every test includes. Tests still include the headers that they use.
#pragma once

#include "pch.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
