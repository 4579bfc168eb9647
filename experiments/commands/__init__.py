"""One module a subcommand of hbmeter; each found by listing this folder."""
