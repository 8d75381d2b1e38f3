"""Which computation is kept, for whom, and where: pure books, no native code (E3)."""
