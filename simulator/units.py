"""Units of a GPU that a launch keeps busy, and their columns in arrays of cycles."""

UNITS = ("matmul", "exp", "issue", "alu", "shared memory", "SM boundary", "DRAM")
MATMUL, EXP, ISSUE, ALU, SMEM, BOUNDARY, DRAM = range(len(UNITS))
