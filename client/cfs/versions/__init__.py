"""What programs make of the versions of files: the origin of each line, and repositories of git."""
