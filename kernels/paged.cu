// Split-KV decode of a paged KV cache: schedule paged.
#define PAGED
#include "split_kv.cuh"
