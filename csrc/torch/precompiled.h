// What nearly every file needs: parsed once (setup.py). Nothing relies on it; each file includes what it uses.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>
