"""The result files of a profile, one module for each: `write(model, directory)` writes it where its conditions hold."""

from torch_npu.profiler.writers import (
    analysis_db,
    api_statistic,
    communication,
    communication_matrix,
    counters,
    data_preprocess,
    database,
    kernel_details,
    memory_record,
    npu_module_mem,
    op_statistic,
    operator_details,
    operator_memory,
    step_trace_time,
    task_time,
    trace_view,
)

TEXT = (
    trace_view, kernel_details, operator_details, op_statistic, step_trace_time, task_time, api_statistic, memory_record,
    operator_memory, npu_module_mem, communication, communication_matrix, data_preprocess, counters,
)  # fmt: skip
DB = (database, analysis_db)
