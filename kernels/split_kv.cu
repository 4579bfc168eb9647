// Split-KV decode: schedule split_kv.
#include "split_kv.cuh"
