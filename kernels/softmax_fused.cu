// The softmax alone, one pass with the row in shared memory: schedule softmax_fused.
//
// A read and a write an element. A thread reads back from shared memory only what it put there.
#include "softmax.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
hbmeter_softmax_fused(const Element* S, Element* P, int heads, int n_q, int n_kv, int lo_shift,
                      int hi_shift COUNTERS) {
    extern __shared__ __align__(16) unsigned char shared[];
    Element* kept = reinterpret_cast<Element*>(shared);
    Memory memory;
    with_row(S, P, heads, n_q, n_kv, lo_shift, hi_shift, [&](auto row) {
        Online online;
        row.load(memory, [&](int column, auto& x, auto& word) {
            row.put(kept, column, word);
            online.add(x);
        });
        online.merge();
        float inverse = inverse_of(online.l);
        row.get(kept, [&](int column, auto& x, auto&) {
            row.store(memory, column, x, online.m, inverse);
        });
    });
    FINISH(memory);
}
