"""How often every thread block runs every instruction: what the time reader multiplies by costs.

Thread blocks compute whole tiles, ragged ends included, so an instruction's cost does not depend
on the trip; only loops decide how often it runs. Innermost loops are not walked but counted.
"""

import numpy as np

from ..jit import borrowing, njit
from ..program import Program
from ..tape import Kind
from .walk import END, LET, LOOP, assign, enter_loop, next_trip, trips_left


def executions(program: Program, number: int) -> np.ndarray:
    """[thread block of one head, instruction of phase ``number``] executions; thread blocks in
    grid order, last block axis fastest."""
    phase = program.phase_records[number]
    blocks = -(-phase["extent0"] // phase["step0"]) * -(-phase["extent1"] // phase["step1"])
    counts = np.zeros((blocks, phase["end"] - phase["first"]), np.int64)
    _count(program.tape, _innermost(program), phase["first"], phase["end"], phase["extent0"],
           phase["step0"], phase["extent1"], phase["step1"],
           np.zeros(len(program.vars), np.int64), np.zeros(len(program.vars), np.int64),
           program.numbers, counts)
    return counts


def _innermost(program: Program) -> np.ndarray:
    """For each address: is it a LOOP without loops inside?"""
    tape, found = program.tape, np.zeros(len(program.tape), np.bool_)
    for address in np.flatnonzero(tape["kind"] == Kind.LOOP):
        body = tape["kind"][address + 1:tape[address]["partner"]]
        found[address] = not (body == Kind.LOOP).any()
    return found


@njit
def _count(tape: np.ndarray, innermost: np.ndarray, first: int, end: int, extent0: int, step0: int,
           extent1: int, step1: int, variables: np.ndarray, stops: np.ndarray, numbers: np.ndarray,
           counts: np.ndarray) -> None:
    block = 0
    for r0 in range(0, extent0, step0):
        for c0 in range(0, extent1, step1):
            variables[0], variables[1] = r0, c0
            _count_block(tape, innermost, first, end, variables, stops, numbers, counts[block])
            block += 1


@borrowing
def _count_block(tape: np.ndarray, innermost: np.ndarray, first: int, end: int,
                 variables: np.ndarray, stops: np.ndarray, numbers: np.ndarray,
                 counts: np.ndarray) -> None:
    pc = first
    while pc < end:
        row = tape[pc]
        if row.kind == LOOP:
            address = pc
            pc = enter_loop(tape, pc, variables, stops)
            if innermost[address] and pc == address + 1:
                trips = trips_left(row, variables, stops)
                for inside in range(pc, row.partner):
                    counts[inside - first] += trips
                pc = row.partner + 1
            continue
        if row.kind == END:
            pc = next_trip(tape, pc, variables, stops)
            continue
        if row.kind == LET:
            assign(row, variables, numbers)
        counts[pc - first] += 1
        pc += 1
