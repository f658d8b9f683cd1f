"""The clock: how long a chip would take for a list of tasks, from published figures of chip and links."""

from softnpu.plan.clock.calibration import Calibration
from softnpu.plan.clock.figures import ClockError
from softnpu.plan.clock.prediction import Prediction, TaskTime, predict
from softnpu.plan.clock.topology import Topology

__all__ = ["Calibration", "ClockError", "Prediction", "TaskTime", "Topology", "predict"]
