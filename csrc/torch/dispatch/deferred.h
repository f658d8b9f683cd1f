// Launches that do not simply run: on a blocked stream they queue, in a task group they are remembered as operators,
// and in an update they replace the arguments of a remembered one. The first two are stages of OperatorTask.
#pragma once

#include "torch/graph/capture.h"

namespace softnpu {

void update_begin(int device, StreamId stream, const std::shared_ptr<TaskGroup>& group);
void update_end(int device, StreamId stream);

}  // namespace softnpu
