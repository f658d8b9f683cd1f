"""Numbers in ascend_pytorch_profiler.db and what they stand for."""

OP, QUEUE, PYTHON, MSTX = 50001, 50002, 50003, 50004
ACL, NODE, COMMUNICATION = 20000, 10000, 5500
API_TYPES = {
    ACL: "acl", 15000: "model", NODE: "node", COMMUNICATION: "communication", 5000: "runtime", OP: "op",
    QUEUE: "queue", PYTHON: "trace", MSTX: "mstx",
}  # fmt: skip
DATA_TYPES = {
    0: "INT8", 1: "INT16", 2: "INT32", 3: "FP16", 4: "FP32", 5: "INT64", 6: "UINT64", 7: "UINT8", 8: "UINT16",
    9: "UINT32", 10: "FP64", 11: "BFP16", 12: "INT128", 255: "RESERVED", 65534: "N/A", 65535: "INVALID_TYPE",
}  # fmt: skip
LINKS = {
    0: "ON_CHIP", 1: "HCCS", 2: "PCIE", 3: "ROCE", 4: "SIO", 5: "HCCS_SW", 6: "STANDARD_ROCE", 255: "RESERVED",
    65534: "N/A", 65535: "INVALID_TYPE",
}  # fmt: skip
TRANSPORTS = {
    0: "SDMA",
    1: "RDMA",
    2: "LOCAL",
    255: "RESERVED",
    65534: "N/A",
    65535: "INVALID_TYPE",
}
MODULES = {3: "HCCL", 7: "RUNTIME", 33: "APP", 45: "GE"}
MARKS = {0: "marker", 1: "push/pop", 2: "start/end", 3: "marker_ex"}
HCCS, SDMA, APP = 1, 0, 33
