// The softmax alone, two passes over a row in global memory: schedule softmax_online.
//
// The largest score and the sum of exponentials are found together: the sum is rescaled when a
// larger score comes. Two reads and a write an element.
#include "softmax.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
hbmeter_softmax_online(const Element* S, Element* P, int heads, int n_q, int n_kv, int lo_shift,
                       int hi_shift COUNTERS) {
    Memory memory;
    with_row(S, P, heads, n_q, n_kv, lo_shift, hi_shift, [&](auto row) {
        Online online;
        row.load(memory, [&](int, auto& x, auto&) { online.add(x); });
        online.merge();
        float inverse = inverse_of(online.l);
        row.load(memory, [&](int column, auto& x, auto&) {
            row.store(memory, column, x, online.m, inverse);
        });
    });
    FINISH(memory);
}
