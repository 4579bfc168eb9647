"""Moving pictures of tile programs, as a player (HTML) and as a GIF, from the program itself."""
