"""What the L2 reader counts: sectors of 32 bytes, a column each, for every tensor."""

READ, FETCHED, WRITTEN, WRITTEN_BACK, FILLED, MERGED = range(6)
COLUMNS = 6
SECTOR_BYTES = 32
