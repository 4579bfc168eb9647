// The softmax alone, three passes over a row in global memory: schedule softmax_safe.
//
// The largest score, the sum of exponentials, the weights: three reads and a write an element.
#include "softmax.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
hbmeter_softmax_safe(const Element* S, Element* P, int heads, int n_q, int n_kv, int lo_shift,
                     int hi_shift COUNTERS) {
    Memory memory;
    with_row(S, P, heads, n_q, n_kv, lo_shift, hi_shift, [&](auto row) {
        float top = MINUS_INFINITY, l = 0.0f;
        row.load(memory, [&](int, auto& x, auto&) { top = fmaxf(top, largest(x)); });
        top = finite_max(over_row(top, Larger()));
        row.load(memory, [&](int, auto& x, auto&) { l += sum_of_exponentials(x, top); });
        float inverse = inverse_of(over_row(l, Plus()));
        row.load(memory, [&](int column, auto& x, auto&) {
            row.store(memory, column, x, top, inverse);
        });
    });
    FINISH(memory);
}
