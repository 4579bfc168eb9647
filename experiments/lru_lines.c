/* The reader of simulator/engines/lru_lines.py in C, loop by loop: the yardstick of
   `hbmeter bench --peers` for what the compiled Python leaves on the table. */
#include <stdint.h>

enum { WAYS = 16, SECTORS = 4, ALL = 15, LANES = 128 };
typedef struct { int64_t first, lines, sectors; } run_t;

static uint32_t same_tag(uint32_t a, uint32_t b) { return (a ^ b) <= ALL ? ~0u : 0u; }

static uint32_t sectors(uint32_t word) {
    uint32_t pairs = (word & 5) + ((word >> 1) & 5);
    return (pairs & 3) + (pairs >> 2);
}

static uint32_t top_way(uint32_t word, uint32_t *restrict top, int64_t n, uint32_t *restrict carry,
                        int64_t *hits) {
    uint32_t still = 0, found = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t old = top[i], match = same_tag(old, word);
        top[i] = word | (old & match);
        carry[i] = old & ~match;
        still |= old & ~match;
        found += sectors(old & match & word & ALL);
    }
    *hits += found;
    return still;
}

static uint32_t pass_way(uint32_t word, uint32_t *restrict top, uint32_t *restrict row, int64_t n,
                         uint32_t *restrict carry, int64_t *hits) {
    uint32_t still = 0, found = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t old = row[i], carried = carry[i], active = carried ? ~0u : 0u;
        uint32_t match = same_tag(old, word) & active;
        row[i] = carried | (old & ~active);
        top[i] |= old & match;
        carry[i] = old & active & ~match;
        still |= old & active & ~match;
        found += sectors(old & match & word & ALL);
    }
    *hits += found;
    return still;
}

/* Sectors that hit; words is [n_sets / LANES][WAYS][LANES]. */
int64_t read_runs(const run_t *runs, int64_t n_runs, uint32_t *words, int64_t n_sets) {
    static uint32_t carry[LANES];
    int64_t hits = 0;
    for (int64_t r = 0; r < n_runs; r++) {
        int64_t line = runs[r].first, end = line + runs[r].lines;
        int64_t tag = line / n_sets + 1, index = line % n_sets;
        while (line < end) {
            int64_t n = end - line, lane = index % LANES;
            if (n > n_sets - index) n = n_sets - index;
            if (n > LANES - lane) n = LANES - lane;
            uint32_t word = (uint32_t)(tag << SECTORS | runs[r].sectors);
            uint32_t *top = words + (index - lane) * WAYS + lane;
            uint32_t on = top_way(word, top, n, carry, &hits);
            for (int way = 1; on && way < WAYS; way++)
                on = pass_way(word, top, top + way * LANES, n, carry, &hits);
            line += n;
            index += n;
            if (index == n_sets) { tag++; index = 0; }
        }
    }
    return hits;
}
