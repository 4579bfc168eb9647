"""What the L2 reader counts: sectors of 32 bytes, a column each, for every tensor."""

READ, FETCHED, WRITTEN, WRITTEN_BACK, FILLED = range(5)
COLUMNS = 5
SECTOR_BYTES = 32
