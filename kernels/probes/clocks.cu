// Where SMs are, for their clocks (clocks.py): what they run is in tensor.cu, wgmma.cu, power.cu.
#include "places.cuh"
